"""Row ranges: stock's `indexer_k_start_end`, from device metadata."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.kernels import interpreter  # noqa: F401
from tests.unit.kernels.guarded import Guarded

from plait.kernels.row_range import Queries, RowRange, row_range, row_range_reference

CPU = torch.device("cpu")


def int32(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def guarded(rows: int) -> tuple[RowRange, list[Guarded]]:
    parts = [Guarded((rows,), torch.int32) for _ in range(3)]
    return RowRange(*(part.tensor for part in parts)), parts


def test_the_example_of_the_engine() -> None:
    """Two requests, extends 3 and 2, lengths 10 and 4: `_cal_indexer_k_start_end`'s own comment."""
    ranges = RowRange.empty(5, CPU)
    row_range(Queries(int32([0, 3, 5]), None, 5), int32([0, 10, 14]), ranges)
    assert ranges.first.tolist() == [0, 0, 0, 10, 10]
    assert ranges.end.tolist() == [8, 9, 10, 13, 14]
    assert ranges.request.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("positions", [None, torch.int32, torch.int64])
def test_each_row_sees_its_request_up_to_itself(positions: torch.dtype | None) -> None:
    rng = np.random.default_rng(4)
    for requests, padding in ((0, 0), (0, 3), (1, 0), (2, 5), (5, 300), (40, 1)):
        lengths = rng.integers(1, 400, requests)
        extends = np.array([int(rng.integers(0, length + 1)) for length in lengths], dtype=np.int64)
        starts, keys = (np.concatenate([[0], np.cumsum(a)]) for a in (extends, lengths))
        rows = int(starts[-1]) + padding
        where = [
            np.sort(rng.permutation(length)[:extend]) for length, extend in zip(lengths, extends, strict=True)
        ]
        if positions is None:
            where = [
                np.arange(length - extend, length) for length, extend in zip(lengths, extends, strict=True)
            ]
        flat = np.concatenate([*where, np.empty(0, dtype=np.int64)])
        given = None if positions is None else torch.from_numpy(flat.astype(np.int64)).to(positions)
        queries = Queries(int32(starts.tolist()), given, rows)
        (out, guards), (expected, _) = guarded(rows), guarded(rows)
        row_range(queries, int32(keys.tolist()), out)
        row_range_reference(queries, int32(keys.tolist()), expected)
        for guard, mine, other in zip(guards, out, expected, strict=True):
            guard.check()
            assert mine.tolist() == other.tolist()
        request = np.repeat(np.arange(requests), extends)
        none = [0] * padding
        assert out.first.tolist() == [*keys[request].tolist(), *none]
        assert out.end.tolist() == [*(keys[request] + flat + 1).astype(int).tolist(), *none]
        assert out.request.tolist() == [*request.tolist(), *none]


def test_what_does_not_fit_is_refused() -> None:
    starts, ranges = int32([0, 3]), RowRange.empty(3, CPU)
    with pytest.raises(ValueError, match="give int32"):
        row_range(Queries(starts.long(), None, 3), starts, ranges)
    with pytest.raises(ValueError, match=r"requests \+ 1"):
        row_range(Queries(starts, None, 3), int32([0, 3, 5]), ranges)
    with pytest.raises(ValueError, match="a range is"):
        row_range(Queries(starts, None, 4), starts, ranges)
    with pytest.raises(ValueError, match="positions"):
        row_range(Queries(starts, int32([0] * 6)[::2], 3), starts, ranges)
