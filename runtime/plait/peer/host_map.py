"""mmap at chosen addresses, which Python's own mmap module does not offer; and a memory fence."""

from __future__ import annotations

import ctypes
import os
import platform

PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED = 0x01, 0x02, 0x10
_MAP_ANONYMOUS, _MAP_NORESERVE = 0x20, 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value
_MEMBARRIER = {"x86_64": 324, "aarch64": 283}
_PRIVATE_EXPEDITED, _REGISTER_PRIVATE_EXPEDITED = 1 << 3, 1 << 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.syscall.restype = ctypes.c_long


def reserve(nbytes: int) -> int:
    """The address of a range without memory behind it: touching it faults. Raises OSError."""
    return _mmap(None, nbytes, PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE, -1)


def map_at(address: int, nbytes: int, fd: int, *, writable: bool) -> None:
    """Map the file `fd` over a part of a reserved range. Raises OSError."""
    _mmap(address, nbytes, PROT_READ | (PROT_WRITE if writable else 0), _MAP_SHARED | _MAP_FIXED, fd)


def unmap(address: int, nbytes: int) -> None:
    """Give a whole range back, with all that is mapped in it. Raises OSError."""
    if _libc.munmap(address, nbytes):
        raise _os_error()


def _mmap(address: int | None, nbytes: int, prot: int, flags: int, fd: int) -> int:
    got = _libc.mmap(address, nbytes, prot, flags, fd, 0)
    if got is None or got == _MAP_FAILED:
        raise _os_error()
    return int(got)


def _os_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


class Fence:
    """A full memory fence for this thread, called as a function.

    x86 keeps stores in order and loads in order, which is all that the barrier asks for: nothing is done
    there. Elsewhere `membarrier` does it. Raises OSError on construction where neither holds.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        if platform.machine() == "x86_64":
            return
        self._number = _MEMBARRIER.get(platform.machine())
        if self._number is None:
            raise OSError(f"no memory fence is known for {platform.machine()}")
        self._membarrier(_REGISTER_PRIVATE_EXPEDITED)

    def __call__(self) -> None:
        if self._number is not None:
            self._membarrier(_PRIVATE_EXPEDITED)

    def _membarrier(self, command: int) -> None:
        if _libc.syscall(self._number, command, 0, 0):
            raise _os_error()
