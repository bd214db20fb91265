"""Kernels compiled for an H200 on a machine without one: launches are recorded, then built for sm_90."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

H200 = GPUTarget("cuda", 90, 32)
_TYPES = {
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
}


class Launch(NamedTuple):
    """One recorded launch."""

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, Any]

    def build(self) -> Any:
        """The compiled kernel, specialised as a launch on the device would be."""
        signature, constants, attributes = {}, {}, {}
        for position, parameter in enumerate(self.kernel.params):
            name, value = parameter.name, self.arguments[parameter.name]
            fixed = isinstance(value, int) and value == 1 and not parameter.do_not_specialize
            if parameter.is_constexpr or fixed:
                signature[name], constants[(position,)] = "constexpr", value
                continue
            aligned = value.data_ptr() if isinstance(value, torch.Tensor) else value
            signature[name] = (
                f"*{_TYPES[value.dtype]}"
                if isinstance(value, torch.Tensor)
                else ("i32" if -(2**31) <= value < 2**31 else "i64")
            )
            if aligned % 16 == 0 and not parameter.do_not_specialize:
                attributes[(position,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constants, attributes)
        return triton.compile(source, target=H200, options=self.options)


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Inside, a kernel's launch is noted and does nothing."""
    launches: list[Launch] = []

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        del warmup
        assert all(1 <= size <= limit for size, limit in zip(grid, (2**31 - 1, 65535, 65535), strict=False))
        options = {name: kwargs.pop(name) for name in ("num_warps", "num_stages") if name in kwargs}
        arguments = dict(zip(self.arg_names, args, strict=False))
        assert not set(arguments) & set(kwargs)
        arguments |= kwargs
        assert set(arguments) == set(self.arg_names), f"{self.arg_names} got {sorted(arguments)}"
        launches.append(Launch(self, arguments, options))

    with mock.patch.object(JITFunction, "run", note):
        yield launches


def vectors(built: Any) -> dict[str, int]:
    """How often each load and store of global memory stands in the PTX, by its width: `ld.v4.b32` ..."""
    found: dict[str, int] = {}
    for kind, rest in re.findall(r"\b(ld|st)\.global((?:\.\w+)*)", built.asm["ptx"]):
        width = ".".join(part for part in rest.split(".") if re.fullmatch(r"v\d|[bf]\d+", part))
        found[f"{kind}.{width}"] = found.get(f"{kind}.{width}", 0) + 1
    return found
