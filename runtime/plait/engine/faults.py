"""Negative controls: faults put in on purpose (PLAIT_TEST_FAULT), to show that the tests notice them.

Read only where `settings.test_fault` is set; in production it never is.
"""

from __future__ import annotations

import torch

from plait.engine import state


def is_on(name: str) -> bool:
    """Whether the fault `name` was asked for."""
    fault = state.settings.test_fault
    return fault is not None and fault.name == name


def shifted_rows(name: str, layer_id: int, rows: torch.Tensor) -> torch.Tensor:
    """`rows` rolled by one token on rank 1 in layer 1, if the fault `name` is on."""
    if not is_on(name) or layer_id != 1:
        return rows
    here = state.group()
    return rows.roll(1, 0) if here.ranks == 1 or here.rank == 1 else rows
