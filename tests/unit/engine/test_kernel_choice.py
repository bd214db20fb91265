"""Which kernels run in Triton: the same on all ranks, and told."""

from __future__ import annotations

import pytest
import torch
from tests.unit.engine.conftest import Place

from plait.contract.layouts import Layout
from plait.contract.setting_kinds import Kernels
from plait.engine import state
from plait.kernels.choice import KERNELS, Choice

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
FAST, SLOW = Choice("triton", "its trial equals the reference"), Choice("torch", "RuntimeError: no ptxas")


@pytest.fixture
def settle(monkeypatch: pytest.MonkeyPatch, place: Place):
    """`settle` where this rank's trials end with `mine` and the other rank has chosen `other`."""
    from plait.engine import kernel_choice

    monkeypatch.setattr(state, "kernels", [])

    def run(device: torch.device, *, mine: Choice = FAST, other: Choice = FAST, **settings: object):
        place.at(0, 2)
        place.settings(layout=Layout.SHARED, **settings)
        monkeypatch.setattr(kernel_choice, "choose", lambda device, kernels: dict.fromkeys(kernels, mine))
        monkeypatch.setattr(
            kernel_choice, "_all_ranks", lambda choices: [choices, dict.fromkeys(choices, other)]
        )
        return kernel_choice.settle(device)

    return run


def test_a_kernel_that_all_ranks_can_run_is_used(settle) -> None:
    assert settle(CUDA)["pull"] is KERNELS["pull"].fast
    assert [(k.name, k.implementation, k.reason) for k in state.kernels] == [("pull", "triton", "")]


@pytest.mark.parametrize(("mine", "other", "rank"), [(SLOW, FAST, 0), (FAST, SLOW, 1)])
def test_one_rank_that_cannot_is_enough(
    settle, capsys: pytest.CaptureFixture[str], mine: Choice, other: Choice, rank: int
) -> None:
    assert settle(CUDA, mine=mine, other=other)["pull"] is KERNELS["pull"].reference
    said = capsys.readouterr().out
    assert said.count("plait: ") == 1
    assert f"rank {rank}: RuntimeError: no ptxas" in said
    assert state.kernels[0].implementation == "torch"
    assert "no ptxas" in state.kernels[0].reason


def test_torch_can_be_asked_for(settle) -> None:
    other = Choice("torch", "PLAIT_KERNELS = torch")
    assert settle(CUDA, other=other, kernels=Kernels.TORCH)["pull"] is KERNELS["pull"].reference
    assert "PLAIT_KERNELS = torch" in state.kernels[0].reason


def test_without_a_gpu_nothing_is_tried_or_said(settle, capsys: pytest.CaptureFixture[str]) -> None:
    other = Choice("torch", "no Triton on device cpu")
    assert settle(CPU, other=other)["pull"] is KERNELS["pull"].reference
    assert capsys.readouterr().out == ""
    assert "no Triton on device cpu" in state.kernels[0].reason
