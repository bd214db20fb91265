"""The trials at start: every kernel passes its own, and no kernel that is wrong passes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.unit.kernels import interpreter  # noqa: F401

from plait.kernels import pull, trials
from plait.kernels.choice import KERNELS, Kernel, choose

CPU = torch.device("cpu")
OUTPUTS = ("out", "buffer", "inverse", "ranges")


def home(name: str) -> tuple[ModuleType, str]:
    fast = KERNELS[name].fast
    return inspect.getmodule(fast), fast.__name__  # type: ignore[return-value]


def output(function: Callable[..., Any], args: Any, kwargs: Any) -> list[torch.Tensor]:
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    found = [given[name] for name in OUTPUTS if name in given and not (name == "inverse" and "out" in given)]
    return [tensor for one in found for tensor in (one if isinstance(one, tuple) else (one,))]


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_passes_its_trial(name: str) -> None:
    KERNELS[name].trial(CPU)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_does_nothing_fails_its_trial(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute = home(name)
    function = getattr(module, attribute)
    monkeypatch.setattr(module, attribute, lambda *args, **kwargs: output(function, args, kwargs)[0])
    with pytest.raises(trials.TrialFailedError):
        KERNELS[name].trial(CPU)


@pytest.mark.parametrize("name", KERNELS)
def test_one_wrong_byte_fails_the_trial(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute = home(name)
    function = getattr(module, attribute)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        for tensor in output(function, args, kwargs):
            tensor.view(-1).view(torch.uint8)[-1] ^= 0x41
        return result

    monkeypatch.setattr(module, attribute, wrong)
    with pytest.raises(trials.TrialFailedError):
        KERNELS[name].trial(CPU)


def test_packed_rows_may_differ_by_the_division_and_by_no_more() -> None:
    rows = trials._packed(CPU, 4)
    near = rows.clone()
    near[:, 512:528].view(torch.int32)[1, 2] += trials.SCALE_STEPS
    trials.close_rows(near, rows)
    near[:, 512:528].view(torch.int32)[1, 2] += 1
    with pytest.raises(trials.TrialFailedError, match="scales"):
        trials.close_rows(near, rows)
    near = rows.clone()
    near[2, 7] = torch.where(near[2, 7] % 128 == 127, near[2, 7] - 1, near[2, 7] + 1)
    trials.close_rows(near, rows)
    near[2, 7] ^= 0x22
    with pytest.raises(trials.TrialFailedError, match="FP8"):
        trials.close_rows(near, rows)
    near = rows.clone()
    near[3, 655] ^= 1
    with pytest.raises(trials.TrialFailedError, match="1 of"):
        trials.close_rows(near, rows)


def test_a_rank_chooses_triton_where_the_trial_passes() -> None:
    choices = choose(CPU, {"pull": KERNELS["pull"]})
    assert choices["pull"].way == "triton"


def test_a_rank_chooses_torch_where_it_does_not() -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler\nand more")

    kernels = {"pull": Kernel(pull.pull, pull.pull_reference, broken)}
    choice = choose(CPU, kernels)["pull"]
    assert choice.way == "torch"
    assert choice.reason == "RuntimeError: no compiler"
