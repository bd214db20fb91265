"""Copies in lanes, and what the CUDA mover asks of its streams, in which order (on stand-ins for CUDA)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from plait.gather import copy_engine
from plait.gather.copy_engine import (
    EVENT_SETS,
    Copy2D,
    CudaMover,
    HostMover,
    Move,
    PageTensors,
    lanes_of,
    mover_for,
)
from plait.gather.runs import Runs

CPU = torch.device("cpu")


def runs(*rows: tuple[int, int, int, int, int]) -> Runs:
    """(owner, physical, place, length, stride) of each run."""
    return Runs(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


def test_each_owner_has_its_lane_and_the_next_rank_comes_first() -> None:
    given = runs((0, 1, 0, 5, 3), (1, 2, 1, 5, 3), (2, 3, 2, 4, 3), (2, 20, 40, 2, 1))
    lanes = lanes_of(given, page_bytes=10, stride=1000, rank=1, ranks=3)
    assert lanes == (
        (Copy2D(20, 30, 2030, 4), Copy2D(400, 10, 2200, 2)),
        (Copy2D(0, 30, 10, 5),),
        (Copy2D(10, 30, 1020, 5),),
    )


def test_lanes_of_one_owner_share_a_run_in_pieces() -> None:
    [first, second, third] = lanes_of(
        runs((0, 4, 7, 8, 2), (0, 50, 60, 1, 1)), page_bytes=10, stride=1000, rank=0, ranks=1, per_owner=3
    )
    assert (first, second, third) == (
        (Copy2D(70, 20, 40, 2), Copy2D(600, 10, 500, 1)),
        (Copy2D(110, 20, 60, 3),),
        (Copy2D(170, 20, 90, 3),),
    )


class Recorder:
    """Stands in for CUDA: streams, events and copies that write down what they are asked."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.status = 0
        self.events = 0
        self.streams = 0

    def stream(self, device: object = None) -> Any:
        self.streams += 1
        return FakeStream(self, f"s{self.streams}")

    def event(self) -> Any:
        self.events += 1
        return FakeEvent(self, self.events)

    def copy(self, *asked: Any) -> tuple[Any]:
        from cuda.bindings import runtime

        dst, dpitch, src, spitch, width, rows, kind, stream = asked
        assert spitch == width
        assert kind == runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self.log.append(f"copy on {stream}: {rows} x {width} from {src} to {dst} by {dpitch}")
        return (runtime.cudaError_t(self.status),)


class FakeStream:
    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder, self.cuda_stream = recorder, name

    def wait_event(self, event: FakeEvent) -> None:
        self.recorder.log.append(f"{self.cuda_stream} waits for {event.at}")


class FakeEvent:
    def __init__(self, recorder: Recorder, number: int) -> None:
        self.recorder, self.at = recorder, f"unrecorded {number}"

    def record(self, stream: FakeStream) -> None:
        self.at = f"{stream.cuda_stream}@{len(self.recorder.log)}"
        self.recorder.log.append(f"record {self.at}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    main = FakeStream(recorder, "main")
    monkeypatch.setattr("cuda.bindings.runtime.cudaMemcpy2DAsync", recorder.copy)
    monkeypatch.setattr(copy_engine, "_stream", recorder.stream)
    monkeypatch.setattr(copy_engine, "_event", recorder.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: main)

    def entered(stream: FakeStream) -> Any:
        recorder.log.append(f"on {stream.cuda_stream}:")
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "stream", entered)
    return recorder


def a_move(*, fragments: bool) -> tuple[Move, torch.Tensor, torch.Tensor]:
    lists = PageTensors(*(torch.zeros(1, dtype=torch.int64) for _ in range(3))) if fragments else None
    lanes = ((Copy2D(0, 32, 64, 3),), ())
    return Move(16, 1024, lanes, lists), torch.zeros(2048, dtype=torch.uint8), torch.zeros(9, 16).byte()


def test_copies_wait_for_the_slots_readers_and_readers_wait_for_copies(cuda: Recorder) -> None:
    mover = CudaMover(device=CPU, lanes=2, pull=lambda *given: cuda.log.append("pull"))
    move, spanning, target = a_move(fragments=True)
    landing = mover.land(move, spanning, target)
    source, slot = spanning.data_ptr(), target.data_ptr()
    assert cuda.log == [
        "record main@0",
        "s1 waits for main@0",
        f"copy on s1: 3 x 16 from {source + 64} to {slot} by 32",
        "record s1@3",
        "s3 waits for main@0",  # s2 has no copies and is left alone; s3 is the kernel's
        "on s3:",
        "pull",
        "record s3@7",
    ]
    del cuda.log[:]
    landing.wait()
    assert cuda.log == ["main waits for s1@3", "main waits for s3@7"]


def test_a_part_without_fragments_launches_no_kernel(cuda: Recorder) -> None:
    mover = CudaMover(device=CPU, lanes=2, pull=lambda *given: pytest.fail("pulled"))
    move, spanning, target = a_move(fragments=False)
    mover.land(move, spanning, target).wait()
    assert cuda.log[-1] == "main waits for s1@3"


def test_landings_that_are_under_way_have_events_of_their_own(cuda: Recorder) -> None:
    mover = CudaMover(device=CPU, lanes=2, pull=lambda *given: None)
    landings = [mover.land(*a_move(fragments=False)) for _ in range(EVENT_SETS)]
    recorded = [line.removeprefix("record ") for line in cuda.log if line.startswith("record s1")]
    del cuda.log[:]
    for landing in landings:
        landing.wait()
    assert cuda.log == [f"main waits for {at}" for at in recorded]
    made = cuda.events
    mover.land(*a_move(fragments=False))
    assert cuda.events == made, "events are made once"


def test_a_copy_that_is_refused_is_an_error_with_its_name(cuda: Recorder) -> None:
    mover = CudaMover(device=CPU, lanes=2, pull=lambda *given: None)
    cuda.status = 1
    with pytest.raises(RuntimeError, match=r"refused 3 pages of 16 bytes: .*InvalidValue"):
        mover.land(*a_move(fragments=False))


def test_a_host_has_a_mover_too() -> None:
    mover = mover_for(CPU, lanes=3, pull=lambda *given: None)
    assert isinstance(mover, HostMover)
    assert mover.lanes == 3
