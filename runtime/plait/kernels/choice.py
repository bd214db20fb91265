"""Triton or torch: settled at start, by agreement of all ranks, kernel by kernel.

At start each kernel is tried once on tiny input against its reference. A kernel is used only if every rank
can use it; otherwise all ranks use its torch reference, and say so once. A failure later, in flight, is not
caught: a rank that fell back alone would leave its peers with other bytes, or waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import triton

from plait.kernels import (
    convert,
    pages,
    pull,
    pull_rows,
    read_index,
    rerange,
    row_range,
    store_index,
    store_mla,
    trials,
)

Way = Literal["triton", "torch"]


class Kernel(NamedTuple):
    """One kernel: what runs it, what it must equal, and the trial that shows it."""

    fast: Callable[..., Any]
    reference: Callable[..., Any]
    trial: trials.Trial


KERNELS: Mapping[str, Kernel] = {
    "store_mla": Kernel(store_mla.store_mla, store_mla.store_mla_reference, trials.try_store_mla),
    "store_index": Kernel(store_index.store_index, store_index.store_index_reference, trials.try_store_index),
    "store_index_key": Kernel(
        store_index.store_index_key, store_index.store_index_key_reference, trials.try_store_index_key
    ),
    "page_inverse": Kernel(pages.page_inverse, pages.page_inverse_reference, trials.try_page_inverse),
    "dense_pages": Kernel(pages.dense_pages, pages.dense_pages_reference, trials.try_dense),
    "dense_slots": Kernel(pages.dense_slots, pages.dense_slots_reference, trials.try_dense),
    "peer_pages": Kernel(pages.peer_pages, pages.peer_pages_reference, trials.try_peer_pages),
    "peer_slots": Kernel(pages.peer_slots, pages.peer_slots_reference, trials.try_peer_slots),
    "pull": Kernel(pull.pull, pull.pull_reference, trials.try_pull),
    "pull_rows": Kernel(pull_rows.pull_rows, pull_rows.pull_rows_reference, trials.try_pull_rows),
    "rerange": Kernel(rerange.rerange, rerange.rerange_reference, trials.try_rerange),
    "take_rows": Kernel(rerange.take_rows, rerange.take_rows_reference, trials.try_take_rows),
    "read_index": Kernel(read_index.read_index, read_index.read_index_reference, trials.try_read_index),
    "row_range": Kernel(row_range.row_range, row_range.row_range_reference, trials.try_row_range),
    "convert_rows": Kernel(convert.convert_rows, convert.convert_rows_reference, trials.try_convert_rows),
    "convert_pages": Kernel(convert.convert_pages, convert.convert_pages_reference, trials.try_convert_pages),
}


class Choice(NamedTuple):
    """What one rank can use for one kernel, and why."""

    way: Way
    reason: str


class Agreement(NamedTuple):
    """ways: by kernel, the same on all ranks. warning: one text, None if every kernel is Triton's."""

    ways: Mapping[str, Way]
    warning: str | None

    @property
    def in_torch(self) -> tuple[str, ...]:
        """Kernels that run as torch: a metric counts them."""
        return tuple(name for name, way in self.ways.items() if way == "torch")


@dataclass(frozen=True, slots=True)
class Bound:
    """The functions themselves: `bound.pull(...)` is the kernel or its reference, without a test per call.

    Both take the same arguments, but for `config`: only `pull` and `pull_rows` take it as torch too.
    """

    store_mla: Callable[..., None]
    store_index: Callable[..., None]
    store_index_key: Callable[..., None]
    page_inverse: Callable[..., torch.Tensor]
    dense_pages: Callable[..., torch.Tensor]
    dense_slots: Callable[..., torch.Tensor]
    peer_pages: Callable[..., torch.Tensor]
    peer_slots: Callable[..., torch.Tensor]
    pull: Callable[..., None]
    pull_rows: Callable[..., None]
    rerange: Callable[..., torch.Tensor]
    take_rows: Callable[..., torch.Tensor]
    read_index: Callable[..., None]
    row_range: Callable[..., None]
    convert_rows: Callable[..., torch.Tensor]
    convert_pages: Callable[..., torch.Tensor]


def choose(device: torch.device, kernels: Mapping[str, Kernel] = KERNELS) -> dict[str, Choice]:
    """Try every kernel on `device` and say which this rank can use. Compiles them: seconds, at start.

    Raises RuntimeError if a trial has left the device unusable (an illegal access cannot be taken back).
    """
    if device.type != "cuda" and not triton.knobs.runtime.interpret:
        return {name: Choice("torch", f"no Triton on device {device.type}") for name in kernels}
    return {name: _tried(name, kernel, device) for name, kernel in kernels.items()}


def agree(everyone: Sequence[Mapping[str, Choice]]) -> Agreement:
    """What all ranks do, from the choices of all ranks in rank order. Pure: equal input, equal answer.

    Raises ValueError if the ranks do not have the same kernels (they run different versions).
    """
    if not everyone:
        raise ValueError("everyone is empty: give the choices of all ranks, this one's too")
    names = set(everyone[0])
    for rank, choices in enumerate(everyone):
        if set(choices) != names:
            differ = ", ".join(sorted(names ^ set(choices)))
            raise ValueError(f"rank {rank} and rank 0 do not have the same kernels: {differ}")
    ways: dict[str, Way] = {}
    words = []
    for name in everyone[0]:
        refusals = [(rank, c[name].reason) for rank, c in enumerate(everyone) if c[name].way == "torch"]
        ways[name] = "torch" if refusals else "triton"
        if refusals:
            rank, reason = refusals[0]
            more = f" and {len(refusals) - 1} more" if len(refusals) > 1 else ""
            words.append(f"{name} (rank {rank}{more}: {reason})")
    if not words:
        return Agreement(ways, None)
    return Agreement(ways, f"{len(words)} of {len(ways)} kernels run in torch, slower: {'; '.join(words)}")


def bind(agreement: Agreement) -> Bound:
    """The functions that the ranks agreed on."""
    ways = agreement.ways
    return Bound(
        **{name: one.fast if ways[name] == "triton" else one.reference for name, one in KERNELS.items()}
    )


def _tried(name: str, kernel: Kernel, device: torch.device) -> Choice:
    try:
        kernel.trial(device)
        _finish(device)
    except Exception as error:  # of a compiler, a driver, a linker: whatever it is, torch can do it
        try:
            _finish(device)
        except RuntimeError as broken:
            raise RuntimeError(f"the trial of kernel {name} has left {device} unusable: {error}") from broken
        return Choice("torch", f"{type(error).__name__}: {error}".split("\n")[0][:200])
    return Choice("triton", "its trial equals the reference")


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
