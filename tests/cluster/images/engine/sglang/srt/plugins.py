"""The engine's loader, as far as a rehearsal of the hooks goes: entry points are found, nothing is patched.

What stands in: the hooks' targets are in the real engine alone, so they are taken as fitting, unless
STUB_HOOKS=missing asks for the failure. What is real: that the plugin is found at all, and what loads it.
"""

from __future__ import annotations

import importlib.metadata
import sys
from types import SimpleNamespace

from sglang.switches import Switches


def load_plugins() -> None:
    """Find the plugin, and leave the list of its hooks where a rehearsal looks for it."""
    switches = Switches.from_env()
    entries = importlib.metadata.entry_points(group="sglang.srt.plugins")
    if "plait" not in entries.names:
        return  # as the stock engine: without a word
    from plait.contract.settings import Settings
    from plait.engine.targets import TARGETS

    settings = Settings.from_env()
    wanted = [
        target
        for target in TARGETS
        if target.wanted(layout=settings.layout, cpu=settings.cpu, debug=settings.debug_checks)
    ]
    if switches.hooks == "missing":
        print(f"plait: hook target is missing: {wanted[0].path}", file=sys.stderr, flush=True)
        raise SystemExit(78)
    hooks = [SimpleNamespace(target=target) for target in wanted]
    sys.modules["plait.engine.state"] = SimpleNamespace(hooks=hooks)  # type: ignore[assignment]
