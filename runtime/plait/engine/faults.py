"""Negative controls: faults put in on purpose (PLAIT_TEST_FAULT), to show that the tests notice them.

Read only where `settings.test_fault` is set; in production it never is. `file:PATH` takes the name of the
fault from a file, read anew at each use, so that one running engine can be well and ill in turn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from plait.engine import state
from plait.layout import Int64Array

KNOWN = ("shift-mla", "shift-index", "swap-owners", "drop-page", "slow-send", "fail-send")
"""Faults by name.

shift-mla, shift-index: rank 1 stores its rows of layer 1 one token off.
swap-owners: a sequence's first two pages are taken from each other's owner, when read and when sent.
drop-page: rank 0 leaves a page out of each transfer.
slow-send: rank 1 takes `SLOW_SEND_S` before each batch of blocks. fail-send: rank 1's batches fail.
"""
SLOW_SEND_S = 3.0
FROM_FILE = "file"


def is_on(name: str) -> bool:
    """Whether the fault `name` was asked for."""
    fault = state.settings.test_fault
    if fault is None:
        return False
    if fault.name == FROM_FILE:
        path = Path(fault.arg)
        return path.exists() and path.read_text().strip() == name
    return fault.name == name


def swapped_owners(pages: Int64Array) -> Int64Array:
    """`pages` with the first two exchanged, if the fault `swap-owners` is on."""
    if len(pages) < 2 or not is_on("swap-owners"):
        return pages
    return np.concatenate([pages[1::-1], pages[2:]])


def shifted_rows(name: str, layer_id: int, rows: torch.Tensor) -> torch.Tensor:
    """`rows` rolled by one token on rank 1 in layer 1, if the fault `name` is on."""
    if layer_id != 1 or not is_on(name):
        return rows
    here = state.group()
    return rows.roll(1, 0) if here.rank == 1 else rows
