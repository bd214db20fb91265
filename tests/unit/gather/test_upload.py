"""Index arrays of a batch on their way to the device."""

from __future__ import annotations

import numpy as np
import torch

from plait.gather.upload import uploaded

CPU = torch.device("cpu")


def test_arrays_arrive_as_they_were() -> None:
    arrays = [np.arange(5), np.zeros(0, dtype=np.int64), np.array([-1, 2**40]), np.arange(10)[::2]]
    moved = uploaded(*arrays, device=CPU)
    assert [one.tolist() for one in moved] == [one.tolist() for one in arrays]
    assert all(one.dtype == torch.int64 and one.is_contiguous() for one in moved)


def test_the_arrays_may_be_used_again_at_once() -> None:
    array = np.arange(3)
    [moved] = uploaded(array, device=CPU)
    array[:] = 9
    assert moved.tolist() == [0, 1, 2]


def test_nothing_is_nothing() -> None:
    assert uploaded(device=CPU) == []
    [empty] = uploaded(np.zeros(0, dtype=np.int64), device=CPU)
    assert empty.shape == (0,)
