"""Runs by the copy engines and fragments by a kernel, on streams beside the one that computes.

One stream per owner: a GPU has several copy engines, and each link gets work at once. The streams are shared
by all kinds and layers, so they are one queue: what was launched first lands first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple, Protocol

import torch

from plait.gather.exchange import LANDED, Pending
from plait.gather.runs import Runs

EVENT_SETS = 4
"""Landings under way at once before `done` answers for a newer one: a view has one, a batch two views."""


class Pull(Protocol):
    """`plait.kernels.pull.pull`, or its torch reference: pages by list, on the current stream."""

    def __call__(
        self,
        spanning: torch.Tensor,
        stride: int,
        page_bytes: int,
        owner: torch.Tensor,
        physical: torch.Tensor,
        place: torch.Tensor,
        out: torch.Tensor,
    ) -> None: ...


class Copy2D(NamedTuple):
    """One run in bytes: `rows` pages from `source` of the spanning memory to `target` of the dense slot,
    whose pages are `pitch` apart."""

    target: int
    pitch: int
    source: int
    rows: int


class PageTensors(NamedTuple):
    """A page list on the device, int64 [pages] each."""

    owner: torch.Tensor
    physical: torch.Tensor
    place: torch.Tensor


class Move(NamedTuple):
    """A part in one kind's pages, ready to be moved in any layer. lanes: per stream, its copies in order."""

    page_bytes: int
    stride: int
    lanes: tuple[tuple[Copy2D, ...], ...]
    fragments: PageTensors | None


def lanes_of(
    runs: Runs, *, page_bytes: int, stride: int, rank: int, ranks: int, per_owner: int = 1
) -> tuple[tuple[Copy2D, ...], ...]:
    """The copies of each of `ranks * per_owner` lanes: an owner's runs on its own lanes, the next rank's
    first and this rank's own last, so that no two ranks begin at one owner.

    stride: bytes between two ranks' memory. per_owner: lanes that share one owner's pages; long runs are cut
    into as many pieces.
    """
    lanes: list[list[Copy2D]] = [[] for _ in range(ranks * per_owner)]
    columns = zip(*(column.tolist() for column in runs), strict=True)
    for owner, physical, place, length, step in columns:
        first = (owner - rank - 1) % ranks * per_owner
        pieces = min(per_owner, length)
        for piece in range(pieces):
            begin, end = length * piece // pieces, length * (piece + 1) // pieces
            lanes[first + piece].append(
                Copy2D(
                    target=(place + begin * step) * page_bytes,
                    pitch=step * page_bytes,
                    source=owner * stride + (physical + begin) * page_bytes,
                    rows=end - begin,
                )
            )
    return tuple(map(tuple, lanes))


class Mover(Protocol):
    """Carries moves out on one device. lanes: how many streams it has for copies."""

    lanes: int

    def land(self, move: Move, spanning: torch.Tensor, target: torch.Tensor) -> Pending:
        """Move a part from `spanning` (uint8 [bytes], all ranks) to `target` (uint8 [pages, page bytes])."""


class CudaMover:
    """Copies by `cudaMemcpy2DAsync`, each lane on its stream; fragments by `pull` on a stream of their own.

    HAZARDS. Write after read: all streams wait for what is on the caller's stream at `land`, so a slot that a
    kernel there still reads is not overwritten; readers on other streams are not known here. Lifetime: the
    page lists belong to the caller's stream and are read on another, so a part must have been waited for
    before its move is dropped (`DenseView` does, in `consume` or `end`).
    """

    def __init__(self, *, device: torch.device, lanes: int, pull: Pull) -> None:
        # Here, not above: a host without CUDA bindings can use collectives.
        from cuda.bindings import runtime  # type: ignore[import-untyped]

        self.lanes = lanes
        self._device = device
        self._copy = runtime.cudaMemcpy2DAsync
        self._kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._fine = runtime.cudaError_t.cudaSuccess
        self._pull = pull
        self._streams = [_stream(device) for _ in range(lanes + 1)]
        self._handles = [stream.cuda_stream for stream in self._streams]
        self._sets = [_EventSet(lanes + 1) for _ in range(EVENT_SETS)]
        self._next = 0

    def land(self, move: Move, spanning: torch.Tensor, target: torch.Tensor) -> Pending:
        events = self._sets[self._next]
        self._next = (self._next + 1) % EVENT_SETS
        events.fork.record(torch.cuda.current_stream(self._device))
        source_at, target_at = spanning.data_ptr(), target.data_ptr()
        copy, kind, fine, width = self._copy, self._kind, self._fine, move.page_bytes
        landed = []
        for lane, copies in enumerate(move.lanes):
            if not copies:
                continue
            stream, handle = self._streams[lane], self._handles[lane]
            stream.wait_event(events.fork)
            for to, pitch, at, rows in copies:
                (status,) = copy(target_at + to, pitch, source_at + at, width, width, rows, kind, handle)
                if status != fine:
                    raise RuntimeError(f"the copy engine refused {rows} pages of {width} bytes: {status}")
            events.landed[lane].record(stream)
            landed.append(events.landed[lane])
        if move.fragments is not None:
            stream, event = self._streams[-1], events.landed[-1]
            stream.wait_event(events.fork)
            with torch.cuda.stream(stream):
                self._pull(spanning, move.stride, width, *move.fragments, target)
            event.record(stream)
            landed.append(event)
        return _Landing(landed, self._device)


def _stream(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    return event


class _EventSet:
    """Events of one landing, used again after EVENT_SETS landings. A wait that was asked for keeps what it
    waits for; one asked for later than that would wait for the newer landing on that stream, so for more."""

    def __init__(self, streams: int) -> None:
        self.fork = _event()
        self.landed = [_event() for _ in range(streams)]


class _Landing:
    def __init__(self, events: Sequence[torch.cuda.Event], device: torch.device) -> None:
        self._events = events
        self._device = device

    def done(self) -> bool:
        return all(map(torch.cuda.Event.query, self._events))

    def wait(self) -> None:
        stream = torch.cuda.current_stream(self._device)
        for event in self._events:
            stream.wait_event(event)


def mover_for(device: torch.device, *, lanes: int, pull: Pull) -> Mover:
    """The mover of `device`, with `lanes` copy streams. Make one per process: it is the one queue of all."""
    if device.type == "cuda":
        return CudaMover(device=device, lanes=lanes, pull=pull)
    return HostMover(lanes=lanes, pull=pull)


class HostMover:
    """The same moves on a machine without a GPU: strided copies, done when `land` returns."""

    def __init__(self, *, lanes: int, pull: Pull) -> None:
        self.lanes = lanes
        self._pull = pull

    def land(self, move: Move, spanning: torch.Tensor, target: torch.Tensor) -> Pending:
        width = move.page_bytes
        flat = target.view(-1)
        # Lanes in turn, as engines would: no order between them may be relied on.
        for copies in zip_longest(*move.lanes):
            for copy in copies:
                if copy is not None:
                    source = spanning[copy.source : copy.source + copy.rows * width].view(copy.rows, width)
                    flat[copy.target :].as_strided((copy.rows, width), (copy.pitch, 1)).copy_(source)
        if move.fragments is not None:
            self._pull(spanning, move.stride, width, *move.fragments, target)
        return LANDED
