"""Epochs that wrap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plait.peer.pads import (
    CHANNELS,
    COUNTERS_OFFSET,
    FIRST_EPOCH,
    MOST_RANKS,
    PAD_BYTES,
    after,
    is_behind,
    meeting_number,
    ranks_of,
)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**31 - 1))
def test_order_holds_across_the_wrap(start: int, ahead: int) -> None:
    def int32(value: int) -> int:
        return (value + 2**31) % 2**32 - 2**31

    one, other = int32(start), int32(start + ahead)
    assert is_behind(one, other) == (ahead > 0)
    assert not is_behind(other, one)


def test_every_long_run_passes_the_wrap() -> None:
    epoch = FIRST_EPOCH
    seen = []
    for number in range(1, 1001):
        assert not is_behind(after(epoch), epoch)
        assert is_behind(epoch, after(epoch))
        epoch = after(epoch)
        assert -(2**31) <= epoch < 2**31
        assert meeting_number(epoch) == number
        seen.append(epoch)
    assert min(seen) < 0 < max(seen)


@given(st.sets(st.integers(0, MOST_RANKS - 1)))
def test_ranks_of_a_mask(ranks: set[int]) -> None:
    assert ranks_of(sum(1 << rank for rank in ranks)) == tuple(sorted(ranks))


def test_the_pad_has_a_word_for_all() -> None:
    assert COUNTERS_OFFSET == CHANNELS * MOST_RANKS * 4
    assert PAD_BYTES == COUNTERS_OFFSET + CHANNELS * 4
