"""Which of the kernels that an engine calls run in Triton: settled at start, the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from plait.contract.setting_kinds import Kernels
from plait.contract.status import KernelStatus
from plait.engine import state
from plait.kernels.choice import KERNELS, Agreement, Choice, agree, choose

USED = ("pull",)
"""Kernels that the engine calls; the others serve what is not built into it yet."""


def settle(device: torch.device) -> dict[str, Callable[..., Any]]:
    """The functions to call, by kernel: each the kernel or, where any rank cannot run it, its reference.

    Every rank, once, at start. One line in the log and the status say what runs in torch and why; on a
    machine without a GPU that is expected, and only the status says it.
    """
    if device.type != "cuda":  # also where Triton is interpreted: that is for tests of kernels
        choices = {name: Choice("torch", f"no Triton on device {device.type}") for name in USED}
    elif state.settings.kernels is Kernels.TORCH:
        choices = {name: Choice("torch", "PLAIT_KERNELS = torch") for name in USED}
    else:
        choices = choose(device, {name: KERNELS[name] for name in USED})
    agreed = agree(_all_ranks(choices))
    if agreed.warning is not None and device.type == "cuda" and state.group().rank == 0:
        print(f"plait: {agreed.warning}", flush=True)
    state.kernels = told(agreed)
    return {
        name: KERNELS[name].fast if way == "triton" else KERNELS[name].reference
        for name, way in agreed.ways.items()
    }


def told(agreed: Agreement) -> list[KernelStatus]:
    """What the status says of an agreement."""
    return [
        KernelStatus(name=name, implementation=way, reason=(agreed.warning or "") if way == "torch" else "")
        for name, way in agreed.ways.items()
    ]


def _all_ranks(choices: dict[str, Choice]) -> list[dict[str, Choice]]:
    from sglang.srt.runtime_context import get_parallel

    everyone: list[Any] = [None] * state.group().ranks
    dist.all_gather_object(everyone, choices, group=get_parallel().attn_cp_group.cpu_group)
    return everyone
