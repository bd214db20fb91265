"""A CUDA driver of numbers: what it hands out must come back, and any call can be made to fail."""

from __future__ import annotations

import os
from collections import Counter
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

GRANULARITY = 2 << 20


class Result(IntEnum):
    """CUresult."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_UNKNOWN = 999


class Names:
    """An enum of the bindings: each name is its own value."""

    def __getattr__(self, name: str) -> str:
        return name


class FakeDriver:
    """The part of `cuda.bindings.driver` that Plait calls, for one process that sees devices `uuids`.

    fail: name of a call and the how-manieth of it (from 0) that fails, with which result.
    live: what was handed out and has not come back.
    """

    CUdevice_attribute = Names()
    CUmemAllocationGranularity_flags = Names()
    CUmemAllocationHandleType = Names()
    CUmemAllocationType = Names()
    CUmemLocationType = Names()
    CUmemAccess_flags = Names()

    def __init__(
        self,
        uuids: tuple[str, ...] = ("a", "b"),
        *,
        fail: tuple[str, int, Result] | None = None,
        attributes: dict[str, int] | None = None,
        reads_only: bool = True,
        peers: bool = True,
    ) -> None:
        self.uuids, self.fail, self.reads_only, self.peers = uuids, fail, reads_only, peers
        self.attributes = attributes or {}
        self.calls: Counter[str] = Counter()
        self.live: Counter[str] = Counter()
        self.order: list[str] = []
        self.access: dict[int, str] = {}
        self.properties: Any = None
        self._contexts: list[object] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            number = self.calls[name]
            self.calls[name] += 1
            self.order.append(name)
            if self.fail is not None and self.fail[:2] == (name, number):
                return (self.fail[2],)
            return getattr(self, f"_{name}")(*arguments)  # type: ignore[no-any-return]

        return call

    def CUmemLocation(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(type=None, id=None)

    def CUmemAccessDesc(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(location=None, flags=None)

    def CUmemAllocationProp(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(allocFlags=SimpleNamespace(gpuDirectRDMACapable=0))

    def _cuGetErrorString(self, status: Result) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, status.name.lower().encode()

    def _cuDeviceGetCount(self) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, len(self.uuids)

    def _cuDeviceGet(self, index: int) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, index

    def _cuDeviceGetUuid(self, device: int) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, SimpleNamespace(bytes=self.uuids[device].encode().ljust(16))

    def _cuDeviceGetAttribute(self, attribute: str, device: int) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, self.attributes.get(attribute.removeprefix("CU_DEVICE_ATTRIBUTE_"), 1)

    def _cuDeviceCanAccessPeer(self, device: int, other: int) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, int(self.peers)

    def _cuMemGetAllocationGranularity(self, properties: Any, flag: str) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, GRANULARITY

    def _cuDevicePrimaryCtxRetain(self, device: int) -> Any:  # noqa: N802
        self.live["context"] += 1
        return Result.CUDA_SUCCESS, object()

    def _cuDevicePrimaryCtxRelease(self, device: int) -> Any:  # noqa: N802
        return self._back("context")

    def _cuCtxPushCurrent(self, context: object) -> Any:  # noqa: N802
        assert context is not None
        self.live["current"] += 1
        return (Result.CUDA_SUCCESS,)

    def _cuCtxPopCurrent(self) -> Any:  # noqa: N802
        return self._back("current")

    def _cuCtxSynchronize(self) -> Any:  # noqa: N802
        return self._inside()

    def _cuMemCreate(self, nbytes: int, properties: Any, flags: int) -> Any:  # noqa: N802
        assert self.live["current"], "created outside the context"
        assert nbytes % GRANULARITY == 0
        self.properties = properties
        self.live["handle"] += 1
        return Result.CUDA_SUCCESS, ("handle", self.calls["cuMemCreate"])

    def _cuMemRelease(self, handle: object) -> Any:  # noqa: N802
        return self._back("handle")

    def _cuMemExportToShareableHandle(self, handle: object, kind: str, flags: int) -> Any:  # noqa: N802
        return Result.CUDA_SUCCESS, os.memfd_create("fake")

    def _cuMemImportFromShareableHandle(self, fd: int, kind: str) -> Any:  # noqa: N802
        os.fstat(fd)
        self.live["handle"] += 1
        return Result.CUDA_SUCCESS, ("imported", fd)

    def _cuMemAddressReserve(self, nbytes: int, align: int, at: int, flags: int) -> Any:  # noqa: N802
        assert nbytes % GRANULARITY == 0
        self.live["range"] += 1
        return Result.CUDA_SUCCESS, self.calls["cuMemAddressReserve"] << 44

    def _cuMemAddressFree(self, address: int, nbytes: int) -> Any:  # noqa: N802
        if any(address <= mapped < address + nbytes for mapped in self.access):
            return (Result.CUDA_ERROR_INVALID_VALUE,)  # what is mapped must be unmapped first
        return self._back("range")

    def _cuMemMap(self, address: int, nbytes: int, offset: int, handle: object, flags: int) -> Any:  # noqa: N802
        self.live["mapping"] += 1
        self.access[address] = "none"
        return (Result.CUDA_SUCCESS,)

    def _cuMemUnmap(self, address: int, nbytes: int) -> Any:  # noqa: N802
        del self.access[address]
        return self._back("mapping")

    def _cuMemSetAccess(self, address: int, nbytes: int, wanted: list[Any], count: int) -> Any:  # noqa: N802
        flags = wanted[0].flags
        if flags == "CU_MEM_ACCESS_FLAGS_PROT_READ" and not self.reads_only:
            return (Result.CUDA_ERROR_NOT_SUPPORTED,)
        self.access[address] = flags
        return (Result.CUDA_SUCCESS,)

    def _cuMemsetD8(self, address: int, value: int, count: int) -> Any:  # noqa: N802
        return self._inside()

    def _cuMemsetD32(self, address: int, value: int, count: int) -> Any:  # noqa: N802
        assert 0 <= value < 2**32
        return self._inside()

    def _back(self, what: str) -> Any:
        assert self.live[what] > 0, f"{what} came back twice"
        self.live[what] -= 1
        return (Result.CUDA_SUCCESS,)

    def _inside(self) -> Any:
        return (Result.CUDA_SUCCESS if self.live["current"] else Result.CUDA_ERROR_INVALID_CONTEXT,)
