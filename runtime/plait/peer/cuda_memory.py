"""Memory of CUDA devices by the driver's virtual memory management: allocated once, mapped by every rank."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from plait.peer.driver import Driver, DriverError, load
from plait.peer.errors import PeersCannotMapError
from plait.peer.region import Allocation, Region
from plait.peer.terms import Note

_READ_ONLY_REFUSED = ("CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_VALUE")
"""What drivers say that cannot map a peer's memory for reading only."""


class CudaAllocation:
    """See `plait.peer.region.Allocation`."""

    def __init__(self, driver: Driver, properties: Any, nbytes: int) -> None:
        self.nbytes = nbytes
        self.fd = -1
        self._driver = driver
        self.handle: Any = driver("cuMemCreate", nbytes, properties, 0)
        try:
            self.fd = int(
                driver("cuMemExportToShareableHandle", self.handle, properties.requestedHandleTypes, 0)
            )
        except DriverError:
            self.close()
            raise

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
        handle, self.handle = self.handle, None
        if handle is not None:
            _quietly(self._driver, "cuMemRelease", handle)


class CudaRegion:
    """See `plait.peer.region.Region`. Made by `CudaSpace.map`, inside its context."""

    def __init__(self, space: CudaSpace, *, span: int, stride: int, nbytes: int) -> None:
        self.stride = stride
        self.peers_read_only = False
        self._space, self._span, self._nbytes = space, span, nbytes
        self._mapped: list[int] = []
        self.base = int(space.driver("cuMemAddressReserve", span, 0, 0, 0))

    def put(self, index: int, handle: Any, *, writable: bool) -> bool:
        """Map an allocation at `index` for this device. Returns whether it can only be read."""
        driver, address = self._space.driver, self.base + index * self.stride
        driver("cuMemMap", address, self._nbytes, 0, handle, 0)
        self._mapped.append(address)
        flags = driver.api.CUmemAccess_flags
        if not writable:
            try:
                self._access(address, flags.CU_MEM_ACCESS_FLAGS_PROT_READ)
                return True
            except DriverError as error:
                if error.code not in _READ_ONLY_REFUSED:
                    raise
        self._access(address, flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return False

    def tensor(self, offset: int, nbytes: int) -> torch.Tensor:
        device = self._space.device
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8, device=device)
        address = self.base + offset
        # The device is named, for asking the address for it would give the owner of a peer's memory, and
        # torch would copy it over.
        made = torch.as_tensor(_Bytes(address, nbytes), device=device)
        if made.data_ptr() != address or made.device != device:
            raise RuntimeError(f"torch made a copy on {made.device} of mapped memory on {device}")
        return made

    def close(self) -> None:
        span, self._span = self._span, 0
        if not span:
            return
        with self._space.context(quiet=True) as driver:
            # Kernels and copies of this rank may still read what is about to go.
            _quietly(driver, "cuCtxSynchronize")
            self._unmap(driver)
            _quietly(driver, "cuMemAddressFree", self.base, span)

    def _unmap(self, driver: Driver) -> None:
        for address in self._mapped:
            _quietly(driver, "cuMemUnmap", address, self._nbytes)
        self._mapped.clear()

    def _access(self, address: int, flags: Any) -> None:
        driver = self._space.driver
        wanted = driver.api.CUmemAccessDesc()
        wanted.location = self._space.location()
        wanted.flags = flags
        driver("cuMemSetAccess", address, self._nbytes, [wanted], 1)


class CudaSpace:
    """See `plait.peer.region.Space`. Works in the device's primary context, which torch uses too.

    Raises PeersCannotMapError if the device has no virtual memory management with file descriptors.
    """

    def __init__(self, device: torch.device, *, driver: Driver | None = None) -> None:
        if device.index is None:
            raise ValueError("a CUDA device needs its index here: a rank's memory is on one device")
        self.device, self.kind = device, "cuda"
        self.uuid = ""
        self.driver = driver or load()
        try:
            self._device = self.driver("cuDeviceGet", device.index)
            self.uuid = bytes(self.driver("cuDeviceGetUuid", self._device).bytes).hex()
            self._refuse_unless("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "virtual memory management")
            self._refuse_unless(
                "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", "file descriptors of its memory (a container "
                "may need more rights)",
            )  # fmt: skip
            self.rdma = bool(self.driver.attribute(self._device, "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"))
            self._properties = self._make_properties()
            flags = self.driver.api.CUmemAllocationGranularity_flags
            self.granularity = int(
                self.driver(
                    "cuMemGetAllocationGranularity",
                    self._properties,
                    flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
                )
            )
            self._context: Any = self.driver("cuDevicePrimaryCtxRetain", self._device)
        except DriverError as error:
            raise PeersCannotMapError(f"{self._name()}: {error}") from error

    def note(self) -> Note:
        return {"uuid": self.uuid, "device": self._name()}

    def check(self, notes: Sequence[Note]) -> None:
        # The same device needs no peer access. One that this process does not see (CUDA_VISIBLE_DEVICES)
        # cannot be asked about: mapping it will tell.
        others = {str(note["uuid"]): str(note["device"]) for note in notes if note["uuid"] != self.uuid}
        try:
            for uuid, name in others.items():
                other = self._visible(uuid)
                if other is not None and not int(self.driver("cuDeviceCanAccessPeer", self._device, other)):
                    raise PeersCannotMapError(f"{self._name()} cannot read the memory of {name}")
        except DriverError as error:
            raise PeersCannotMapError(f"{self._name()}: {error}") from error

    def allocate(self, nbytes: int, *, name: str) -> CudaAllocation:
        try:
            with self.context() as driver:
                return CudaAllocation(driver, self._properties, nbytes)
        except DriverError as error:
            raise PeersCannotMapError(
                f"{self._name()}: no memory for {name}, {nbytes} bytes: {error}"
            ) from error

    def map(
        self, own: Allocation, fds: Sequence[int], *, rank: int, stride: int, name: str, writable: bool
    ) -> CudaRegion:
        assert isinstance(own, CudaAllocation)
        region: CudaRegion | None = None
        index = rank
        try:
            with self.context() as driver:
                span = (len(fds) - 1) * stride + own.nbytes
                region = CudaRegion(self, span=span, stride=stride, nbytes=own.nbytes)
                region.put(rank, own.handle, writable=True)
                driver("cuMemsetD8", region.base + rank * stride, 0, own.nbytes)
                driver("cuCtxSynchronize")
                read_only = []
                for index, fd in enumerate(fds):
                    if index != rank:
                        read_only.append(self._put_peer(region, index, fd, writable=writable))
                region.peers_read_only = bool(read_only) and all(read_only)
                return region
        except DriverError as error:
            if region is not None:
                region.close()
            raise PeersCannotMapError(
                f"{self._name()} cannot map the {name} of rank {index}: {error}"
            ) from error

    def fill(self, region: Region, *, rank: int, nbytes: int, word: int) -> None:
        try:
            with self.context() as driver:
                driver("cuMemsetD32", region.base + rank * region.stride, word & 0xFFFFFFFF, nbytes // 4)
                driver("cuCtxSynchronize")
        except DriverError as error:
            raise PeersCannotMapError(f"{self._name()}: {error}") from error

    def close(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            _quietly(self.driver, "cuDevicePrimaryCtxRelease", self._device)

    def context(self, *, quiet: bool = False) -> _Current:
        """The device's context, current on this thread while inside. quiet: go on without one where the
        driver refuses, as it does when it has been shut down."""
        return _Current(self.driver, self._context, quiet=quiet)

    def location(self) -> Any:
        """This device as a place of memory."""
        place = self.driver.api.CUmemLocation()
        place.type = self.driver.api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        place.id = int(self._device)
        return place

    def _put_peer(self, region: CudaRegion, index: int, fd: int, *, writable: bool) -> bool:
        handle = self.driver("cuMemImportFromShareableHandle", fd, self._properties.requestedHandleTypes)
        try:
            return region.put(index, handle, writable=writable)
        finally:
            _quietly(self.driver, "cuMemRelease", handle)  # the mapping keeps the memory

    def _make_properties(self) -> Any:
        api = self.driver.api
        made = api.CUmemAllocationProp()
        made.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        made.location = self.location()
        made.requestedHandleTypes = api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        # Transfer engines register the pools for RDMA, which plain VMM memory does not take.
        made.allocFlags.gpuDirectRDMACapable = int(self.rdma)
        return made

    def _refuse_unless(self, attribute: str, what: str) -> None:
        if not self.driver.attribute(self._device, attribute):
            raise PeersCannotMapError(f"{self._name()} does not offer {what}")

    def _visible(self, uuid: str) -> Any:
        """The device with `uuid`, if this process sees it."""
        for index in range(int(self.driver("cuDeviceGetCount"))):
            device = self.driver("cuDeviceGet", index)
            if bytes(self.driver("cuDeviceGetUuid", device).bytes).hex() == uuid:
                return device
        return None

    def _name(self) -> str:
        return f"GPU {self.device.index} ({self.uuid[:8]})"


class _Current:
    """A context pushed on this thread's stack, and popped."""

    def __init__(self, driver: Driver, context: Any, *, quiet: bool) -> None:
        self._driver, self._context, self._quiet = driver, context, quiet
        self._pushed = False

    def __enter__(self) -> Driver:
        try:
            self._driver("cuCtxPushCurrent", self._context)
            self._pushed = True
        except DriverError:
            if not self._quiet:
                raise
        return self._driver

    def __exit__(self, *_: object) -> None:
        if self._pushed:
            _quietly(self._driver, "cuCtxPopCurrent")


class _Bytes:
    """Bytes at a device address, for `torch.as_tensor`."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def _quietly(driver: Driver, call: str, *arguments: object) -> None:
    """A call on the way out: after a fault of the device, or at the exit of the process, it may fail, and
    nothing can be done about it."""
    with suppress(DriverError):
        driver(call, *arguments)
