"""Engine processes by fork: imported once, not once per process.

Stock spawns its schedulers and detokenizer, because a forked process cannot use CUDA that its parent has
touched. Without CUDA that reason is gone, and some thousand modules are a large part of a start: 15 to 20
processor seconds in each process. HAZARD: what a process must learn after the fork (its state folder) has
to be set in the parent's memory too, not only in its environment; see `start.serve_status`.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

from plait.engine.install import implements


@implements("entrypoints.engine._set_envs_and_config")
def fork_processes(result: None, server_args: Any) -> None:
    """After the engine has chosen `spawn`, and before it has started anything or any thread."""
    del result, server_args
    multiprocessing.set_start_method("fork", force=True)
