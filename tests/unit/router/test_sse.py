"""Events: looked into as they pass, cut at any place, and errors written as one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.router import sse
from plait.router.errors import RouterError
from plait.router.sse import EventCutter, EventScan, Said, error_event, payloads

STREAM = 'data: {"a":1}\n\n: ping\n\ndata: {"é":"…"}\n\ndata: [DONE]\n\n'.encode()
ERROR = b'data: {"error": {"message": "out of memory", "type": "x", "param": null, "code": 500}}\n\n'
BROKEN = b'data: {"a":1}\n\n' + ERROR + b"data: [DONE]\n\n"
AT = len(b'data: {"a":1}\n\n' + ERROR)


def pieces(stream: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = [0, *sorted(cuts), len(stream)]
    return (stream[a:b] for a, b in itertools.pairwise(places) if a < b)


def cuts_of(stream: bytes) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, len(stream)), max_size=8)


# --- EventScan ---------------------------------------------------------------------------------------------


@given(cuts_of(STREAM))
def test_stream_that_is_well_is_complete_at_its_end_only(cuts: list[int]) -> None:
    scan = EventScan()
    parts = list(pieces(STREAM, cuts))
    for part in parts[:-1]:
        assert scan.feed(part) is None
        assert not scan.done
    assert scan.feed(parts[-1]) is None
    assert scan.done


@given(cuts_of(BROKEN))
def test_error_is_found_where_it_stands(cuts: list[int]) -> None:
    scan, passed = EventScan(), 0
    for part in pieces(BROKEN, cuts):
        said = scan.feed(part)
        if said is not None:
            assert said.error.message == "out of memory"
            assert passed + said.keep == AT
            return
        passed += len(part)
    pytest.fail("the error was not found")


def test_done_is_seen_only_when_it_came() -> None:
    scan = EventScan()
    scan.feed(b'data: "[DONE]"\n\ndata: [DO')
    assert not scan.done
    scan.feed(b"NE]\n\n")
    assert scan.done


def test_word_error_in_a_text_is_none() -> None:
    scan = EventScan()
    assert scan.feed(b'data: {"text": "an \\"error\\" and an \\"abort\\""}\n\n') is None


def test_end_of_the_stream_completes_an_event() -> None:
    scan = EventScan()
    assert scan.feed(b"data: 1\n\ndata: [DONE]") is None
    assert not scan.done
    assert scan.close() is None
    assert scan.done
    scan = EventScan()
    scan.feed(ERROR.strip())
    said = scan.close()
    assert said is not None
    assert said.error.message == "out of memory"
    assert EventScan().close() is None


def test_long_event_is_not_kept_and_the_next_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    scan = EventScan()
    # The error inside it is not looked for, its own end is found all the same.
    assert scan.feed(b'data: {"error": "' + b"x" * 200) is None
    assert len(scan._rest) < 100
    assert scan.feed(b"x" * 50 + b'"}\n') is None
    assert scan.feed(b"\ndata: 2\n\n") is None
    assert isinstance(scan.feed(ERROR), Said)


# --- EventCutter -------------------------------------------------------------------------------------------


@given(cuts_of(STREAM))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    cutter = EventCutter()
    found = [e for part in pieces(STREAM, cuts) for e in cutter.feed(part)]
    assert found == [b'{"a":1}', '{"é":"…"}'.encode()]
    assert cutter.close() == []


def test_end_of_the_stream_completes_a_payload() -> None:
    cutter = EventCutter()
    assert cutter.feed(b"data: 1\n\ndata: 2") == [b"1"]
    assert cutter.close() == [b"2"]


def test_payloads_are_those_of_data_events() -> None:
    assert payloads(b"\r\ndata:1\n\nevent: x\n\ndata: [DONE]\n\n: ping\n\ndata: 2 \n\n") == [b"1", b"2"]


# --- errors ------------------------------------------------------------------------------------------------


def test_error_event_closes_a_torn_event_first() -> None:
    error = RouterError(502, "broken", code="decode_broken")
    whole = error_event(error)
    assert whole.startswith(b"data: ")
    assert whole.endswith(b"\n\n")
    assert json.loads(whole[6:]) == error.payload()
    assert error_event(error, after=b"\n\n") == error_event(error, after=b"") == whole
    assert error_event(error, after=b'"}') == error_event(error, after=b"}\n") == b"\n\n" + whole
