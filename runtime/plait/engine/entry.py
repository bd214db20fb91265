"""The entry point `sglang.srt.plugins` -> `plait`: imports nothing heavy, and never fails quietly.

The engine's loader catches `Exception` around a plugin and goes on without it. A server that was asked
for one shared cache and silently keeps N copies is worse than one that does not start, so every error
here becomes a `SystemExit`, which the loader does not catch.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn


def activate() -> None:
    """Install Plait's hooks in this engine process, as its PLAIT_* settings ask. Off: do nothing at all."""
    try:
        from plait.contract.settings import Settings
        from plait.contract.violation import ContractError

        try:
            settings = Settings.from_env()
        except ContractError as error:
            stop(f"the PLAIT_* settings are refused:\n{error}")
        if settings.layout == "off" and not settings.cpu:
            return
        from plait.engine.install import install

        install(settings)
    except Exception as error:
        traceback.print_exc()
        stop(f"the plugin could not be installed: {type(error).__name__}: {error}")


def stop(message: str) -> NoReturn:
    """End this process with one clear message (exit status 78, the BSD code for a configuration error)."""
    print(f"plait: {message}", file=sys.stderr, flush=True)
    if _is_child():
        # A scheduler that exits before it reported ready would leave its parent waiting on a pipe; the
        # parent of a spawned engine process watches for SIGQUIT, as stock SGLang does for its own failures.
        _signal_parent()
    raise SystemExit(78)


def end_engine() -> NoReturn:
    """End the whole engine from any thread of a scheduler, at once: its parent ends the other ranks too."""
    import signal

    os.kill(os.getppid(), signal.SIGQUIT)
    os._exit(70)


def _is_child() -> bool:
    import multiprocessing

    return multiprocessing.parent_process() is not None


def _signal_parent() -> None:
    import multiprocessing
    import signal

    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        os.kill(parent.pid, signal.SIGQUIT)
