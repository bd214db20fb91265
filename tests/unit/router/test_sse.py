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
from plait.router.sse import EventScan, Piece, error_event, payloads

STREAM = 'data: {"a":1}\n\n: ping\n\ndata: {"é":"…"}\n\ndata: [DONE]\n\n'.encode()
ERROR = b'data: {"error": {"message": "out of memory", "type": "x", "param": null, "code": 500}}\n\n'
BEFORE = b'data: {"a":1}\n\n'
BROKEN = BEFORE + ERROR + b"data: [DONE]\n\n"


def pieces(stream: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = [0, *sorted(cuts), len(stream)]
    return (stream[a:b] for a, b in itertools.pairwise(places) if a < b)


def cuts_of(stream: bytes) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, len(stream)), max_size=8)


@pytest.mark.parametrize("stream", [STREAM, STREAM.replace(b"\n", b"\r\n")], ids=["LF", "CRLF"])
@given(data=st.data())
def test_stream_that_is_well_passes_in_whole_events(stream: bytes, data: st.DataObject) -> None:
    scan, passed, fed = EventScan(), b"", 0
    end = b"\r\n\r\n" if b"\r" in stream else b"\n\n"
    for part in pieces(stream, data.draw(cuts_of(stream))):
        fed += len(part)
        events, error = scan.feed(part)
        assert error is None
        assert not events or events.endswith(end)
        passed += events
        # All that is complete is passed on at once, and no more than that.
        whole = stream[:fed].rfind(end)
        assert passed == (stream[: whole + len(end)] if whole >= 0 else b"")
        assert scan.done is (fed == len(stream))
    assert passed == stream
    assert scan.close() == Piece(b"")


@pytest.mark.parametrize("crlf", [False, True])
@given(data=st.data())
def test_error_ends_what_is_passed_on(crlf: bool, data: st.DataObject) -> None:
    stream, upto = (each.replace(b"\n", b"\r\n") if crlf else each for each in (BROKEN, BEFORE + ERROR))
    scan, passed = EventScan(), b""
    for part in pieces(stream, data.draw(cuts_of(stream))):
        events, error = scan.feed(part)
        passed += events
        if error is not None:
            assert error.message == "out of memory"
            assert passed == upto
            return
    pytest.fail("the error was not found")


def test_done_is_seen_only_when_it_came() -> None:
    scan = EventScan()
    scan.feed(b'data: "[DONE]"\n\ndata: {"text": "[DONE]"}\n\ndata: [DO')
    assert not scan.done
    scan.feed(b"NE]\n\n")
    assert scan.done


def test_word_error_in_a_text_is_none() -> None:
    event = b'data: {"text": "an \\"error\\" and an \\"abort\\""}\n\n'
    assert EventScan().feed(event) == Piece(event)


def test_end_of_the_stream_completes_an_event() -> None:
    scan = EventScan()
    assert scan.feed(b"data: 1\n\ndata: [DONE]\n") == Piece(b"data: 1\n\n")
    assert not scan.done
    assert scan.close() == Piece(b"data: [DONE]\n")
    assert scan.done


def test_end_of_the_stream_completes_an_error() -> None:
    scan = EventScan()
    assert scan.feed(ERROR.strip()) == Piece(b"")
    events, error = scan.close()
    assert error is not None
    assert error.message == "out of memory"
    # With the empty line that a client needs to see it as an event.
    assert events == ERROR


def test_torn_event_is_not_passed_on() -> None:
    scan = EventScan()
    assert scan.feed(BEFORE + b'data: {"a":') == Piece(BEFORE)
    assert scan.close().error is None
    assert not scan.done


def test_long_event_is_passed_on_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    scan, sent, passed = EventScan(), b"", b""
    # The error inside it is not looked for; its own end is found all the same, wherever it is cut.
    for part in (b'data: {"error": "' + b"x" * 200, b"y" * 500, b'"}\n', b"\ndata: 2\n\n"):
        sent += part
        events, error = scan.feed(part)
        assert error is None
        passed += events
        assert sent.startswith(passed)
        assert len(sent) - len(passed) < 100
    assert passed == sent
    assert scan.feed(ERROR).error is not None


def test_stream_that_ends_within_a_long_event_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 10)
    scan = EventScan()
    scan.feed(b"data: " + b"x" * 50)
    scan.feed(b"data: [DONE]")
    assert scan.close().error is None
    assert not scan.done


def test_payloads_are_those_of_data_events() -> None:
    block = b"\r\ndata:1\n\nevent: x\n\ndata: [DONE]\n\n: ping\n\ndata: 2 \n\n"
    assert payloads(block) == payloads(block.replace(b"\n", b"\r\n")) == [b"1", b"2"]
    assert payloads(b"") == []


# --- errors ------------------------------------------------------------------------------------------------


def test_error_event_closes_a_torn_event_first() -> None:
    error = RouterError(502, "broken", code="decode_broken")
    whole = error_event(error)
    assert whole.startswith(b"data: ")
    assert whole.endswith(b"\n\n")
    assert json.loads(whole[6:]) == error.payload()
    assert error_event(error, after=b"\n\n") == error_event(error, after=b"") == whole
    assert error_event(error, after=b'"}') == error_event(error, after=b"}\n") == b"\n\n" + whole


@given(
    st.lists(
        st.sampled_from(
            [b"data: 1\n\n", b"data: [DONE]\n\n", ERROR, b"data: torn", b"\n\n", b"a\r\n\r\n", b"\n"]
        )
    )
)
def test_what_is_clean_would_be_fed_through_unchanged(pieces: list[bytes]) -> None:
    scan, other = EventScan(), EventScan()
    for piece in pieces:
        clean = scan.clean(piece)
        fed = other.feed(piece)
        if clean:
            assert fed == Piece(piece)
            assert not other.done or scan.done
        else:
            scan.feed(piece)
        assert (scan.done, scan._rest) == (other.done, other._rest)
