"""Ranges for a profiler and notes for a reader around the steps of a gather; nothing at all when off.

`trace_for` gives None when both are off, and callers bind what they call at construction: an untraced layer
runs the same code as if this file did not exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

Result = TypeVar("Result")
Note = Callable[[str], None]
"""Takes one line of the debug log."""


class Trace(Protocol):
    """What a gather calls around its steps."""

    def around(self, step: str, call: Callable[[int], Result]) -> Callable[[int], Result]:
        """`call`, whose only argument is a layer, with a range named after the kind and `step` around it."""


def trace_for(kind: str, *, nvtx: bool, note: Note | None = None) -> Trace | None:
    """A trace of `kind` ("mla", "index"): NVTX ranges if `nvtx`, a line per step to `note` if given."""
    if not nvtx and note is None:
        return None
    return _Trace(kind, nvtx, note)


class _Trace:
    def __init__(self, kind: str, nvtx: bool, note: Note | None) -> None:
        self._kind, self._nvtx, self._note = kind, nvtx, note

    def around(self, step: str, call: Callable[[int], Result]) -> Callable[[int], Result]:
        name = f"plait.{self._kind}.{step}"
        traced = _ranged(name, call) if self._nvtx else call
        return traced if self._note is None else _noted(name, traced, self._note)


def _ranged(name: str, call: Callable[[int], Result]) -> Callable[[int], Result]:
    push: Callable[[str], object] = torch.cuda.nvtx.range_push
    pop: Callable[[], object] = torch.cuda.nvtx.range_pop

    def ranged(layer: int) -> Result:
        push(f"{name} {layer}")
        try:
            return call(layer)
        finally:
            pop()

    return ranged


def _noted(name: str, call: Callable[[int], Result], note: Note) -> Callable[[int], Result]:
    def noted(layer: int) -> Result:
        started = time.perf_counter()
        try:
            return call(layer)
        finally:
            note(f"{name} {layer}: {(time.perf_counter() - started) * 1e6:.0f} us of host time")

    return noted
