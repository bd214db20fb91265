"""CUDA memory against a fake driver: what is refused, what is mapped how, and that nothing is ever left."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.unit.peer.fake_driver import FakeDriver, Result
from tests.unit.peer.ranks import open_fds

from plait.peer import cuda_memory, memory
from plait.peer.arena import Segment
from plait.peer.cuda_memory import CudaSpace
from plait.peer.driver import Driver
from plait.peer.errors import PeersCannotMapError
from plait.peer.memory import MappedMemory, open_peer_memory

RANKS = 3
UUIDS = ("a", "b", "c")
ENTERED = (
    "cuDeviceGet",
    "cuDeviceGetUuid",
    "cuDeviceGetAttribute",
    "cuMemGetAllocationGranularity",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuDeviceGetCount",
    "cuDeviceCanAccessPeer",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemsetD8",
    "cuCtxSynchronize",
    "cuMemImportFromShareableHandle",
    "cuMemsetD32",
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="plait-") as made:
        yield Path(made) / "peers"


def open_all(folder: Path, drivers: list[FakeDriver], monkeypatch: pytest.MonkeyPatch) -> list[object]:
    def space(device: torch.device) -> CudaSpace:
        return CudaSpace(device, driver=Driver(drivers[device.index]))

    monkeypatch.setattr(memory, "_space", space)

    def one(rank: int) -> object:
        try:
            return open_peer_memory(
                [Segment("mla.0", 3 << 20)],
                rank=rank,
                ranks=len(drivers),
                device=torch.device("cuda", rank),
                folder=folder,
                unit_bytes=(41984,),
                timeout_s=30,
            )
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(drivers)) as threads:
        return list(threads.map(one, range(len(drivers))))


@pytest.mark.parametrize("reads_only", [True, False])
def test_all_map_all_and_give_everything_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reads_only: bool
) -> None:
    before = open_fds()
    drivers = [FakeDriver(UUIDS, reads_only=reads_only) for _ in range(RANKS)]
    opened = open_all(folder, drivers, monkeypatch)
    for rank, (one, driver) in enumerate(zip(opened, drivers, strict=True)):
        assert isinstance(one, MappedMemory), one
        assert +driver.live == {"context": 1, "range": 2, "mapping": 2 * RANKS}
        assert driver.properties.allocFlags.gpuDirectRDMACapable == 1
        assert driver.properties.location.id == rank
        assert one.stride % 41984 == 0
        assert one.stride % one.arena.size == 0 or one.stride > one.arena.size
        for other in range(RANKS):
            pool = driver.access[one.pool.base + other * one.stride]
            pads = driver.access[one.pads.base + other * one.pads.stride]
            assert pads == "CU_MEM_ACCESS_FLAGS_PROT_READWRITE"
            assert (pool == "CU_MEM_ACCESS_FLAGS_PROT_READ") == (reads_only and other != rank)
        assert one.peers_read_only == reads_only
        driver.order.clear()
        one.close()
        one.close()
        assert not +driver.live
        released = [name for name in driver.order if name not in ("cuCtxPushCurrent", "cuCtxPopCurrent")]
        # Work on the device is waited for before anything goes, mappings go before their range.
        assert released[: RANKS + 2] == ["cuCtxSynchronize", *["cuMemUnmap"] * RANKS, "cuMemAddressFree"]
        assert released[-1] == "cuDevicePrimaryCtxRelease"
    del opened, one
    assert open_fds() == before


@pytest.mark.parametrize("call", ENTERED)
@pytest.mark.parametrize("bad", [0, 1])
def test_a_call_that_fails_leaves_nothing_on_any_rank(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, bad: int
) -> None:
    before = open_fds()
    number = 0
    while True:
        drivers = [FakeDriver(UUIDS) for _ in range(RANKS)]
        drivers[bad].fail = (call, number, Result.CUDA_ERROR_UNKNOWN)
        told = open_all(folder, drivers, monkeypatch)
        if drivers[bad].calls[call] <= number:
            break  # there was no such call: all of them have failed once
        assert [type(one) for one in told] == [PeersCannotMapError] * RANKS, (number, told)
        assert len({str(one) for one in told}) == 1, (number, told)
        assert f"rank {bad} (pid" in str(told[0])
        assert "CUDA_ERROR_UNKNOWN" in str(told[0])
        for driver in drivers:
            assert not +driver.live, (number, driver.live)
        number += 1
    assert number >= 1, f"{call} was never called"
    drivers[bad].fail = None
    for one in told:
        assert isinstance(one, MappedMemory)
        one.close()
    assert open_fds() == before


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "virtual memory management"),
        ("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", "file descriptors"),
    ],
)
def test_a_device_that_cannot_is_refused_on_all_ranks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, attribute: str, says: str
) -> None:
    drivers = [FakeDriver(UUIDS) for _ in range(RANKS)]
    drivers[2].attributes[attribute] = 0
    told = open_all(folder, drivers, monkeypatch)
    assert all(isinstance(one, PeersCannotMapError) for one in told)
    assert all("rank 2 (pid" in str(one) and says in str(one) and "GPU 2" in str(one) for one in told)


def test_devices_that_cannot_reach_each_other_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers = [FakeDriver(UUIDS, peers=index != 1) for index in range(RANKS)]
    told = open_all(folder, drivers, monkeypatch)
    assert all(isinstance(one, PeersCannotMapError) for one in told)
    assert all("cannot read the memory of GPU" in str(one) for one in told)


def test_ranks_on_one_device_need_no_peer_access(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = [FakeDriver(("a", "a"), peers=False) for _ in range(2)]
    opened = open_all(folder, drivers, monkeypatch)
    assert all(isinstance(one, MappedMemory) for one in opened), opened
    for one in opened:
        one.close()  # type: ignore[attr-defined]


def test_a_device_that_a_process_does_not_see_is_tried(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = [FakeDriver(("a",), peers=False), FakeDriver(("x", "b"), peers=False)]
    opened = open_all(folder, drivers, monkeypatch)
    assert all(isinstance(one, MappedMemory) for one in opened), opened
    for one in opened:
        one.close()  # type: ignore[attr-defined]


def test_no_rdma_where_the_device_has_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = [FakeDriver(UUIDS, attributes={"GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": 0})]
    (one,) = open_all(folder, drivers, monkeypatch)
    assert drivers[0].properties.allocFlags.gpuDirectRDMACapable == 0
    one.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("call", ["cuCtxSynchronize", "cuMemUnmap", "cuMemAddressFree", "cuCtxPushCurrent"])
def test_closing_after_a_fault_of_the_device_raises_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    drivers = [FakeDriver(UUIDS)]
    (one,) = open_all(folder, drivers, monkeypatch)
    drivers[0].fail = (call, drivers[0].calls[call], Result.CUDA_ERROR_UNKNOWN)
    one.close()  # type: ignore[attr-defined]


def test_memory_that_is_dropped_is_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = [FakeDriver(UUIDS)]
    opened = open_all(folder, drivers, monkeypatch)
    opened.clear()
    assert not +drivers[0].live


def test_a_device_without_index_is_refused() -> None:
    with pytest.raises(ValueError, match="needs its index"):
        CudaSpace(torch.device("cuda"), driver=Driver(FakeDriver()))


def test_without_a_driver_the_reason_is_told() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a driver")
    with pytest.raises(PeersCannotMapError, match="driver"):
        cuda_memory.load()
