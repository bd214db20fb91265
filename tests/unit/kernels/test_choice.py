"""Triton or torch is one answer for all ranks, whichever rank cannot."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch
import triton

from plait.kernels import Bound, Choice, agree, bind, choose
from plait.kernels.choice import KERNELS

GOOD, BAD = Choice("triton", "fine"), Choice("torch", "no compiler")


def test_a_kernel_is_used_if_every_rank_can() -> None:
    agreement = agree([{"pull": GOOD, "rerange": GOOD}] * 3)
    assert agreement.ways == {"pull": "triton", "rerange": "triton"}
    assert agreement.warning is None
    assert agreement.in_torch == ()


def test_one_rank_that_cannot_decides_for_all_and_is_named() -> None:
    everyone = [
        {"pull": GOOD, "rerange": GOOD},
        {"pull": BAD, "rerange": GOOD},
        {"pull": BAD, "rerange": GOOD},
    ]
    agreement = agree(everyone)
    assert agreement.ways == {"pull": "torch", "rerange": "triton"}
    assert agreement.in_torch == ("pull",)
    assert agreement.warning == ("1 of 2 kernels run in torch, slower: pull (rank 1 and 1 more: no compiler)")
    assert agree(everyone) == agreement


def test_ranks_of_different_versions_are_refused() -> None:
    with pytest.raises(ValueError, match="rank 1 and rank 0 do not have the same kernels: pull"):
        agree([{"rerange": GOOD}, {"rerange": GOOD, "pull": GOOD}])
    with pytest.raises(ValueError, match="empty"):
        agree([])


def test_bound_functions_are_the_ones_agreed_on() -> None:
    choices = dict.fromkeys(KERNELS, GOOD)
    bound = bind(agree([choices, {**choices, "pull": BAD}]))
    assert bound.pull is KERNELS["pull"].reference
    assert bound.store_mla is KERNELS["store_mla"].fast
    assert [field.name for field in dataclasses.fields(Bound)] == list(KERNELS)


def test_a_kernel_and_its_reference_take_the_same_arguments() -> None:
    for name, kernel in KERNELS.items():
        fast, reference = (inspect.signature(one).parameters for one in (kernel.fast, kernel.reference))
        only_fast = set(fast) - set(reference)
        assert only_fast <= {"config", "warps"}, name
        assert [p for p in fast if p in reference] == list(reference), name


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="the interpreter has no need of CUDA")
def test_without_cuda_everything_is_torch() -> None:
    choices = choose(torch.device("cpu"))
    assert set(choices) == set(KERNELS)
    assert {choice.way for choice in choices.values()} == {"torch"}
    assert "cpu" in choices["pull"].reason
