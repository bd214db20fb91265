"""Calls of the CUDA driver that raise what they return. The bindings import without a driver."""

from __future__ import annotations

from typing import Any

from plait.peer.errors import PeersCannotMapError


class DriverError(RuntimeError):
    """A call of the driver that failed. call: its name. code: the CUresult's name."""

    def __init__(self, call: str, code: str, text: str) -> None:
        super().__init__(f"{call}: {code} ({text})")
        self.call, self.code = call, code


class Driver:
    """The CUDA driver: `driver("cuMemCreate", ...)` returns what the call gives beside its status.

    api: the module `cuda.bindings.driver`, or what stands in for it in a test.
    """

    def __init__(self, api: Any) -> None:
        self.api = api

    def __call__(self, call: str, *arguments: object) -> Any:
        status, *values = getattr(self.api, call)(*arguments)
        if int(status):
            raise DriverError(call, getattr(status, "name", str(status)), self._text(status))
        return values[0] if len(values) == 1 else tuple(values) if values else None

    def attribute(self, device: object, name: str) -> int:
        """A device attribute by the end of its name; 0 if the driver does not know it."""
        attribute = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        try:
            return int(self("cuDeviceGetAttribute", attribute, device))
        except DriverError as error:
            if error.code == "CUDA_ERROR_INVALID_VALUE":
                return 0
            raise

    def _text(self, status: object) -> str:
        code, text = self.api.cuGetErrorString(status)
        return "no text" if int(code) or text is None else bytes(text).decode()


def load() -> Driver:
    """The machine's driver, initialized. Raises PeersCannotMapError where there is none."""
    try:
        from cuda.bindings import driver as api  # type: ignore[import-untyped]

        driver = Driver(api)
        driver("cuInit", 0)
    except DriverError as error:
        raise PeersCannotMapError(f"the CUDA driver does not start: {error}") from error
    except (
        ImportError,
        RuntimeError,
    ) as error:  # the bindings' own error for a missing libcuda is a RuntimeError
        raise PeersCannotMapError(f"there is no CUDA driver: {error}") from error
    return driver
