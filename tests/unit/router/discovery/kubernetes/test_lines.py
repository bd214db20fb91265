"""Lines come out whole, whatever pieces they came in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.router.discovery.kubernetes.lines import LineSplitter, LineTooLongError


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"x"))), st.data())
def test_pieces_of_any_size_give_the_same_lines(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    splitter = LineSplitter(limit=100)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    assert found == [line for line in lines if line.strip()]


def test_an_unfinished_line_is_kept_back() -> None:
    splitter = LineSplitter(limit=100)
    assert splitter.feed(b'{"a"') == []
    assert splitter.feed(b": 1}") == []
    assert splitter.feed(b'\n{"b"') == [b'{"a": 1}']


def test_a_line_without_end_is_refused_and_not_kept() -> None:
    splitter = LineSplitter(limit=10)
    assert splitter.feed(b"0123456789\n") == [b"0123456789"]
    assert splitter.feed(b"01234") == []
    with pytest.raises(LineTooLongError, match="10 bytes"):
        splitter.feed(b"567890")
    with pytest.raises(LineTooLongError):
        LineSplitter(limit=10).feed(b"a\n" + b"x" * 11)
