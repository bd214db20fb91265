"""Events: cut at any place, and errors written as one."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from plait.router import sse
from plait.router.errors import RouterError
from plait.router.sse import EventReader, error_event

STREAM = 'data: {"a":1}\n\n: ping\n\ndata: {"é":"…"}\n\ndata: [DONE]\n\n'.encode()


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    reader = EventReader()
    found = [e for a, b in itertools.pairwise(places) for e in reader.feed(STREAM[a:b])]
    assert found == [b'{"a":1}', '{"é":"…"}'.encode()]
    assert reader.done


def test_done_is_seen_only_when_it_came() -> None:
    reader = EventReader()
    assert reader.feed(b'data: "[DONE]"\n\ndata: [DO') == [b'"[DONE]"']
    assert not reader.done
    reader.feed(b"NE]\n\n")
    assert reader.done


def test_end_of_the_stream_completes_an_event() -> None:
    reader = EventReader()
    assert reader.feed(b"data: 1\n\ndata: 2") == [b"1"]
    assert reader.close() == [b"2"]


def test_an_event_without_end_is_dropped_and_the_next_is_read(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    reader = EventReader()
    assert reader.feed(b"data: " + b"x" * 200) == []
    assert reader.feed(b"x" * 50 + b"\n") == []
    assert reader.feed(b"\ndata: 2\n\n") == [b"2"]


def test_error_event_closes_a_torn_event_first() -> None:
    error = RouterError(502, "broken", code="decode_broken")
    whole = error_event(error)
    assert whole.startswith(b"data: ")
    assert whole.endswith(b"\n\n")
    assert json.loads(whole[6:]) == error.payload()
    assert error_event(error, after=b"\n\n") == error_event(error, after=b"") == whole
    assert error_event(error, after=b'"}') == error_event(error, after=b"}\n") == b"\n\n" + whole
