"""Process-wide repairs that must be in place before the engine's modules are imported."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from plait.engine.entry import stop


class _NullStream:
    """Stands in for `torch.cuda.current_stream()`: the CP strategies only pass it through."""

    device = None

    def wait_stream(self, *_: object) -> None: ...
    def wait_event(self, *_: object) -> None: ...
    def record_event(self, *_: object) -> None: ...
    def synchronize(self) -> None: ...


def apply() -> None:
    """Repair torch and the import path for an engine with `--device cpu`. Refused where CUDA works."""
    if torch.cuda.is_available():
        stop("PLAIT_CPU=1 on a machine with CUDA. Fix: unset PLAIT_CPU (it replaces the fast kernels)")
    stream = _NullStream()
    torch.cuda.current_stream = lambda *_, **__: stream  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    # Retraction copies a request's pages to the host between two of these.
    torch.cuda.synchronize = lambda *_, **__: None
    _never_pin()
    _stub_vllm_ops()


def _never_pin() -> None:
    """forward_batch_info pins host tensors unconditionally; without a driver that raises."""
    make = torch.tensor

    def tensor(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        del pin_memory
        return make(*args, **kwargs)

    torch.tensor = tensor


def _stub_vllm_ops() -> None:
    """The engine imports vllm's ops wherever no GPU kernels exist, for names it never calls here."""
    if "vllm" in sys.modules:
        return
    package = types.ModuleType("vllm")
    package.__path__ = []
    ops = types.ModuleType("vllm._custom_ops")

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*_: object, **__: object) -> None:
            raise NotImplementedError(f"vllm._custom_ops.{name} has no CPU reference in Plait")

        return call

    ops.__getattr__ = missing  # type: ignore[method-assign]
    package._custom_ops = ops  # type: ignore[attr-defined]
    sys.modules["vllm"], sys.modules["vllm._custom_ops"] = package, ops
