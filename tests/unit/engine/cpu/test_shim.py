"""Repairs are for machines without CUDA only, and what is not there says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from plait.engine.cpu import shim


@pytest.fixture(autouse=True)
def taken_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (torch, "tensor"),
            (torch.cuda, "current_stream"),
            (torch.cuda, "get_device_capability"),
        ):
            patch.setattr(owner, name, getattr(owner, name))
        for name in ("vllm", "vllm._custom_ops"):
            patch.delitem(sys.modules, name, raising=False)
        yield
        for name in ("vllm", "vllm._custom_ops"):
            sys.modules.pop(name, None)


def test_where_cuda_works_they_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = torch.tensor
    with pytest.raises(SystemExit):
        shim.apply()
    assert "PLAIT_CPU=1 on a machine with CUDA" in capsys.readouterr().err
    assert torch.tensor is before


@pytest.mark.skipif(torch.cuda.is_available(), reason="the repairs are refused where CUDA works")
def test_what_the_engine_asks_of_a_gpu_is_answered() -> None:
    shim.apply()
    assert torch.tensor([1], pin_memory=True).tolist() == [1]
    assert torch.cuda.get_device_capability() == (9, 0)
    stream = torch.cuda.current_stream()
    assert stream is torch.cuda.current_stream()
    stream.wait_stream(stream)
    stream.synchronize()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the repairs are refused where CUDA works")
def test_an_op_without_a_reference_is_named_when_it_is_called() -> None:
    shim.apply()
    import vllm._custom_ops as ops

    with pytest.raises(NotImplementedError, match=r"vllm\._custom_ops.fused_thing has no CPU reference"):
        ops.fused_thing(1)
    with pytest.raises(AttributeError):
        _ = ops.__no_dunder__
