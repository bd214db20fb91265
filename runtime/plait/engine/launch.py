"""The command line and environment of one engine process on this machine. No sglang here.

`prefill_launch` and `decode_launch` are what `plait up` starts: the data of `plait.contract.launch` behind
this Python. Both go through `python -m plait.engine`, which refuses what Plait cannot serve before torch is
imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from plait.contract.launch import CPU_FLAGS, LaunchData, decode_data, prefill_data

__all__ = ["CPU_FLAGS", "EngineLaunch", "decode_launch", "prefill_launch"]


class EngineLaunch(NamedTuple):
    """How to start one engine: `argv`, and the variables to set beside the parent's own."""

    argv: list[str]
    env: dict[str, str]


def prefill_launch(
    *,
    model: Path,
    host: str,
    port: int,
    bootstrap_port: int,
    cp: int,
    layout: str,
    split: str,
    chunk: int,
    max_total_tokens: int | None,
    context_length: int,
    state_dir: Path,
    transfer: str = "mooncake_tcp",
    cpu: bool = True,
    extra: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> EngineLaunch:
    """A context-parallel prefill engine of `cp` ranks that chunks prompts by `chunk` tokens.

    `max_total_tokens` None: the engine makes its KV pool as large as the memory allows.
    """
    data = prefill_data(
        model=str(model),
        served_name=model.resolve().name,
        host=host,
        port=port,
        bootstrap_port=bootstrap_port,
        cp=cp,
        layout=layout,
        split=split,
        chunk=chunk,
        max_total_tokens=max_total_tokens,
        context_length=context_length,
        state_dir=str(state_dir),
        transfer=transfer,
        cpu=cpu,
    )
    return _launch(data, extra, env)


def decode_launch(
    *,
    model: Path,
    host: str,
    port: int,
    index: int,
    max_total_tokens: int | None,
    context_length: int,
    state_dir: Path,
    transfer: str = "mooncake_tcp",
    cpu: bool = True,
    extra: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> EngineLaunch:
    """Decode engine number `index`: not context-parallel, plain full pages.

    `max_total_tokens` None: the engine makes its KV pool as large as the memory allows. On GPUs decode keeps
    the engine's own CUDA graphs and overlap scheduler.
    """
    del index  # ports and folders already tell the instances apart
    data = decode_data(
        model=str(model),
        served_name=model.resolve().name,
        host=host,
        port=port,
        max_total_tokens=max_total_tokens,
        context_length=context_length,
        state_dir=str(state_dir),
        transfer=transfer,
        cpu=cpu,
    )
    return _launch(data, extra, env)


def _launch(data: LaunchData, extra: Sequence[str], env: Mapping[str, str] | None) -> EngineLaunch:
    argv = [sys.executable, "-m", "plait.engine", *data.flags, *extra]
    return EngineLaunch(argv, {**data.env, **(env or {})})
