"""The layout of segments: nothing overlaps, everything is aligned, pages of all ranks count on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.peer.arena import ALIGNMENT, Segment, lay_out

GRANULARITIES = st.sampled_from([4096, 1 << 16, 2 << 20])
UNITS = st.lists(st.sampled_from([64, 528, 8448, 41984, 73728, 147456, 4096]), max_size=4)
SIZES = st.lists(st.integers(0, 1 << 40), max_size=12)


def segments(sizes: list[int]) -> list[Segment]:
    return [Segment(f"s.{i}", size) for i, size in enumerate(sizes)]


@given(SIZES, st.integers(1, 8), GRANULARITIES, UNITS)
def test_places_are_aligned_apart_and_inside(
    sizes: list[int], ranks: int, granularity: int, units: list[int]
) -> None:
    try:
        arena = lay_out(segments(sizes), ranks=ranks, granularity=granularity, unit_bytes=units)
    except ValueError:
        assert sum(sizes) > 1 << 40  # only what goes beyond an address space is refused
        return
    end = 0
    for name, size in segments(sizes):
        place = arena.places[name]
        assert place.nbytes == size
        assert place.offset % ALIGNMENT == 0
        assert end <= place.offset < end + ALIGNMENT
        end = place.offset + size
    assert arena.size >= max(end, 1)
    assert arena.size - end < 2 * granularity
    assert arena.size % granularity == 0
    assert arena.stride >= arena.size
    assert all(arena.stride % unit == 0 for unit in (granularity, *units))
    assert arena.span == (ranks - 1) * arena.stride + arena.size


def test_the_stride_is_no_longer_than_it_must_be() -> None:
    arena = lay_out([Segment("a", 100)], ranks=3, granularity=4096, unit_bytes=(6144,))
    assert (arena.size, arena.stride, arena.span) == (4096, 12288, 28672)


@given(SIZES, st.integers(0, 11), st.integers(1, 1 << 20))
def test_another_layout_has_another_digest(sizes: list[int], index: int, more: int) -> None:
    base = [size % (1 << 30) for size in sizes] or [1]
    other = list(base)
    other[index % len(base)] += more
    one = lay_out(segments(base), ranks=2, granularity=4096, unit_bytes=())
    assert one.digest == lay_out(segments(base), ranks=2, granularity=4096, unit_bytes=()).digest
    assert one.digest != lay_out(segments(other), ranks=2, granularity=4096, unit_bytes=()).digest
    assert one.digest != lay_out(segments(base), ranks=3, granularity=4096, unit_bytes=()).digest
    assert one.digest != lay_out(segments(base), ranks=2, granularity=4096, unit_bytes=(4097,)).digest
    named = [Segment(f"t.{i}", size) for i, size in enumerate(base)]
    assert one.digest != lay_out(named, ranks=2, granularity=4096, unit_bytes=()).digest


@pytest.mark.parametrize(
    ("given_segments", "changed", "says"),
    [
        ([Segment("a", 1), Segment("a", 1)], {}, "'a' twice"),
        ([Segment("a", -1)], {}, "-1 bytes"),
        ([], {"unit_bytes": (0,)}, "unit_bytes has 0"),
        ([], {"ranks": 0}, "ranks is 0"),
        ([], {"granularity": 100}, "granularity is 100"),
        ([], {"unit_bytes": ((1 << 45) + 1,)}, "side by side"),
    ],
)
def test_what_is_refused(given_segments: list[Segment], changed: dict[str, object], says: str) -> None:
    arguments: dict[str, object] = {"ranks": 2, "granularity": 4096, "unit_bytes": (64,), **changed}
    with pytest.raises(ValueError, match=says):
        lay_out(given_segments, **arguments)  # type: ignore[arg-type]
