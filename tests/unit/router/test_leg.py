"""One leg: what goes wrong has a name and an answer, and every wait has an end."""

from __future__ import annotations

import asyncio
import json
from math import inf
from typing import Any

import pytest
from tests.unit.router.conftest import brief
from tests.unit.router.fake_engine import DECODE, JSON, PREFILL, SSE, Sent, fake_worker

from plait.router import leg as module
from plait.router.answers import EngineError
from plait.router.leg import FailureKind, Leg, LegError, RawAnswer
from plait.router.pairing import Side
from plait.router.upstream.connection import Fault

EVENT = b'data: {"text": "a"}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {"message": "out of memory", "type": "x", "param": null, "code": 500}}\n\n'


class Owner:
    def __init__(self) -> None:
        self.moved = 0
        self.failed: list[LegError] = []

    def leg_moved(self, leg: Leg) -> None:
        self.moved += 1

    def leg_failed(self, leg: Leg) -> None:
        assert leg.failure is not None
        self.failed.append(leg.failure)


class Line:
    """A started leg, and the engine's end of it."""

    def __init__(
        self, side: Side = Side.DECODE, *, limit: int = 1000, rids: tuple[str, ...] = ("r",)
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.owner = Owner()
        target = DECODE if side is Side.DECODE else PREFILL
        self.worker, self.pool = fake_worker(target)
        self.leg = Leg(
            self.worker,
            rids,
            self.owner,
            brief(first_byte=10.0, idle=5.0),
            limit,
            self.loop.time,
            relay=side is Side.DECODE,
        )
        self.worker.enter(len(rids))
        self.leg.start([b"HEAD", b"BODY"])

    @property
    def sent(self) -> Sent:
        return self.pool.sent[0]

    def answer(self, status: int, body: bytes, headers: Any = JSON) -> None:
        self.leg.on_head(status, headers)
        if body:
            self.leg.on_data(body)
        self.leg.on_end()

    @property
    def failure(self) -> LegError:
        """The one failure; its leg is over, and counted nowhere any more."""
        [failure] = self.owner.failed
        assert self.leg.failure is failure
        assert not self.leg.done
        assert not self.leg.open
        assert self.worker.in_flight == 0
        assert self.leg.due == inf
        assert failure.side is self.leg.side
        return failure


@pytest.fixture
async def line() -> Line:
    return Line()


# --- from the start to the end -----------------------------------------------------------------------------


async def test_request_is_sent_and_waited_for(line: Line) -> None:
    assert (line.sent.request, line.sent.fresh) == (b"HEADBODY", False)
    assert line.sent.receiver is line.leg
    assert line.leg.open
    assert line.leg.due == pytest.approx(line.loop.time() + 10.0, abs=0.5)
    assert "first byte" in line.leg.waits_for


async def test_fresh_is_passed_on() -> None:
    line = Line()
    leg = Leg(line.worker, ("r",), line.owner, brief(), 1, line.loop.time, relay=True)
    leg.start([b""], fresh=True)
    assert line.pool.sent[1].fresh


async def test_whole_answer(line: Line) -> None:
    line.leg.on_head(200, JSON)
    assert line.leg.due == pytest.approx(line.loop.time() + 5.0, abs=0.5)
    assert "rest of its answer" in line.leg.waits_for
    for piece in (b'{"a":', b" 1}"):
        line.leg.on_data(piece)
    assert not line.leg.done
    assert line.owner.moved == 0
    line.leg.on_end()
    assert (line.leg.done, line.leg.answer, line.leg.streamed) == (True, b'{"a": 1}', False)
    assert (line.owner.moved, line.owner.failed) == (1, [])
    assert line.worker.in_flight == 0
    assert not line.leg.open
    assert line.leg.due == inf
    assert line.leg.started_at <= line.leg.first_at <= line.leg.ended_at


async def test_batch_weighs_as_many_as_its_prompts() -> None:
    line = Line(rids=("a", "b", "c"))
    assert line.worker.in_flight == 3
    line.answer(200, b"[]")
    assert line.worker.in_flight == 0


async def test_work_is_taken_off_the_load(line: Line) -> None:
    leg = Leg(line.worker, ("a",), line.owner, brief(), 1, line.loop.time, relay=True, work=2.5)
    line.worker.enter(1, 2.5)
    assert line.worker.load == 3.5
    leg.start([b""])
    leg.close()
    assert line.worker.load == 1


async def test_closed_leg_is_over_and_silent(line: Line) -> None:
    line.leg.close()
    line.leg.close()
    assert line.sent.connection.log == ["close"]
    assert (line.owner.moved, line.owner.failed) == (0, [])
    assert line.worker.in_flight == 0
    assert not line.leg.open


async def test_answer_that_ended_is_not_closed_any_more(line: Line) -> None:
    """Its connection may be another leg's by now."""
    line.answer(200, b"{}")
    line.leg.close()
    assert line.sent.connection.log == []
    assert line.worker.in_flight == 0


# --- what engines say --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "told"),
    [(400, 400), (404, 404), (422, 422), (429, 429), (503, 503), (500, 502), (504, 502), (307, 502)],
)
async def test_status_goes_on_or_becomes_a_bad_gateway(line: Line, code: int, told: int) -> None:
    line.answer(code, b'{"object": "error", "message": "why", "type": "T", "param": "p", "code": 1}')
    assert (line.failure.kind, line.failure.error.status) == (FailureKind.STATUS, told)
    assert "why" in str(line.failure)
    assert line.failure.retryable is (told >= 500)
    assert line.failure.to_blame is (told == 502)


async def test_4xx_of_an_engine_goes_to_the_client_byte_for_byte(line: Line) -> None:
    body = b'{"odd" :  ["form"]}'
    headers = [(b"content-type", b"text/odd"), (b"retry-after", b"7"), (b"x-a", b"1")]
    line.answer(429, body, headers)
    error = line.failure.error
    assert isinstance(error, RawAnswer)
    assert (error.body(), error.head()) == (body, headers[:2])


def test_raw_answer_has_a_type_and_no_retry_after_of_its_own() -> None:
    assert RawAnswer(429, [], b"x").head() == [(b"content-type", b"application/json")]


@pytest.mark.parametrize("code", [401, 403])
async def test_key_that_an_engine_does_not_take_is_no_fault_of_the_client(line: Line, code: int) -> None:
    line.answer(code, b'{"error": "Unauthorized"}')
    assert line.failure.error.status == 502
    assert "--engine-api-key" in line.failure.error.message
    assert line.failure.to_blame


async def test_long_error_is_cut(line: Line) -> None:
    line.leg.on_head(500, JSON)
    for _ in range(100):
        line.leg.on_data(b"x" * 2000)
    assert sum(map(len, line.leg._parts)) <= 64 << 10
    line.leg.on_end()
    assert line.failure.kind is FailureKind.STATUS


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"error": {"message": "no", "code": 400}}, 400),
        ({"error": {"message": "no", "code": 503}}, 503),
        ({"error": {"message": "no"}}, 502),
        ({"choices": [{"finish_reason": "abort"}]}, 502),
        ({"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "no"}}}, 502),
    ],
)
async def test_failure_inside_a_whole_200(line: Line, said: Any, status: int) -> None:
    line.answer(200, json.dumps(said).encode())
    assert (line.failure.kind, line.failure.error.status) == (FailureKind.ABORTED, status)
    assert line.owner.moved == 0


def test_engines_words_go_to_the_client() -> None:
    said = EngineError("too long", 400, "BadRequest", "max_tokens")
    error = LegError.said(Side.DECODE, said, kind=FailureKind.ABORTED).error
    assert (error.status, error.message, error.type, error.param, error.code) == (
        400,
        "too long",
        "BadRequest",
        "max_tokens",
        "decode_aborted",
    )
    unnamed = LegError.said(Side.DECODE, EngineError("gone"), kind=FailureKind.ABORTED).error
    assert (unnamed.status, unnamed.type) == (502, "server_error")
    busy = LegError.said(Side.PREFILL, EngineError("full", 503), kind=FailureKind.STATUS)
    assert (busy.error.status, busy.error.type, busy.error.retry_after) == (503, "server_error", 1.0)
    assert busy.retryable
    assert not busy.to_blame


@pytest.mark.parametrize(
    ("kind", "status", "to_blame", "retryable"),
    [
        (FailureKind.REFUSED, 502, True, True),
        (FailureKind.BROKEN, 502, True, True),
        (FailureKind.TIMEOUT, 504, True, True),
        (FailureKind.STALE, 502, False, True),
        (FailureKind.TOO_LARGE, 502, False, True),
    ],
)
def test_who_is_to_blame_and_who_may_try_again(
    kind: FailureKind, status: int, to_blame: bool, retryable: bool
) -> None:
    error = LegError(Side.PREFILL, kind, "why")
    assert (error.error.status, error.error.code) == (status, f"prefill_{kind}")
    assert (error.to_blame, error.retryable) == (to_blame, retryable)


async def test_what_a_log_may_say_is_not_what_an_engine_said() -> None:
    for status, body in ((400, b'{"message": "secret"}'), (500, b'{"message": "secret"}')):
        line = Line()
        line.answer(status, body)
        assert "secret" in str(line.failure)
        assert line.failure.logged == f"status, HTTP {status}"
    line = Line()
    line.answer(200, b'{"error": {"message": "secret"}}')
    assert line.failure.logged == "aborted, HTTP 200"
    for status, words in ((401, "--engine-api-key"), (403, "--engine-api-key")):
        line = Line()
        line.answer(status, b'{"message": "secret"}')
        assert words in line.failure.logged
        assert "secret" not in line.failure.logged
    line = Line()
    line.leg.expire()
    assert line.failure.logged == str(line.failure)


# --- connections and clocks --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", list(Fault))
async def test_connection_that_fails(line: Line, fault: Fault) -> None:
    line.leg.on_failed(fault, "did so")
    assert line.failure.kind == fault.value
    assert str(line.failure) == "The decode engine did so."


async def test_late_leg_says_what_it_waited_for(line: Line) -> None:
    line.leg.expire()
    assert (line.failure.kind, line.failure.error.status) == (FailureKind.TIMEOUT, 504)
    assert "waited for the first byte" in str(line.failure)
    assert line.sent.connection.log == ["close"]


@pytest.mark.parametrize(("headers", "what"), [(JSON, "the rest of"), (SSE, "the next event")])
async def test_late_rest_is_told_apart(headers: Any, what: str) -> None:
    line = Line()
    line.leg.on_head(200, headers)
    line.leg.expire()
    assert what in str(line.failure)


async def test_each_read_starts_the_clock_anew(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.leg.on_head(200, SSE)
    line.leg.due = 0.0
    line.leg.on_data(EVENT)
    assert line.leg.due == pytest.approx(line.loop.time() + 5.0, abs=0.5)


async def test_answer_over_the_limit_is_not_kept(line: Line) -> None:
    line.leg.on_head(200, JSON)
    for _ in range(3):
        line.leg.on_data(b"x" * 300)
    assert not line.owner.failed
    line.leg.on_data(b"x" * 300)
    assert line.failure.kind is FailureKind.TOO_LARGE
    assert "1000 bytes" in str(line.failure)
    assert line.sent.connection.log == ["close"]


async def test_what_cannot_be_used_is_broken(line: Line) -> None:
    line.leg.on_head(200, JSON)
    assert line.leg.fail_broken("Cannot be merged.") is line.failure
    assert (line.failure.kind, str(line.failure)) == (FailureKind.BROKEN, "Cannot be merged.")


# --- streams that are passed on ----------------------------------------------------------------------------


async def test_stream_is_taken_as_it_comes(line: Line) -> None:
    line.leg.on_head(200, SSE)
    assert line.leg.streamed
    assert line.leg.take() == b""
    line.leg.on_data(EVENT)
    assert line.owner.moved == 1
    assert line.leg.take() == EVENT
    line.leg.on_data(EVENT[:5])
    assert line.leg.take() == b"", "whole events only"
    assert line.owner.moved == 1
    line.leg.on_data(EVENT[5:] + DONE)
    assert line.leg.take() == EVENT + DONE
    line.leg.on_end()
    assert line.leg.done
    assert line.leg.said is None


@pytest.mark.parametrize("kind", [b"text/event-stream", b"text/event-stream;charset=utf-8"])
async def test_stream_is_told_by_its_type(kind: bytes) -> None:
    line = Line()
    line.leg.on_head(200, [(b"content-type", kind)])
    assert line.leg.streamed
    other = Line()
    other.leg.on_head(400, [(b"content-type", kind)])
    assert not other.leg.streamed


async def test_stream_without_its_end_is_broken(line: Line) -> None:
    line.leg.on_head(200, SSE)
    line.leg.on_data(EVENT + EVENT[:5])
    line.leg.on_end()
    assert line.failure.kind is FailureKind.BROKEN
    assert "before it was complete" in str(line.failure)
    # What came is there to be passed on, up to the last whole event.
    assert line.leg.take() == EVENT


async def test_stream_whose_last_event_lacks_its_empty_line_is_whole(line: Line) -> None:
    line.leg.on_head(200, SSE)
    line.leg.on_data(EVENT + DONE.strip())
    line.leg.on_end()
    assert line.leg.done
    assert line.leg.take() == EVENT + DONE.strip()


async def test_error_in_a_stream_is_its_last_event(line: Line) -> None:
    line.leg.on_head(200, SSE)
    line.leg.on_data(EVENT + ERROR + EVENT)
    assert line.leg.said is not None
    assert not line.owner.failed, "the client reads it first"
    line.leg.on_data(EVENT + DONE)
    assert line.leg.take() == EVENT + ERROR
    assert line.leg.fail_said() is line.failure
    assert (line.failure.kind, line.failure.error.message) == (
        FailureKind.ABORTED,
        "The decode engine failed: out of memory",
    )


async def test_error_that_the_end_completes(line: Line) -> None:
    line.leg.on_head(200, SSE)
    line.leg.on_data(EVENT + ERROR.strip())
    assert line.leg.said is None
    line.leg.on_end()
    assert line.leg.said is not None
    assert line.owner.moved == 2
    assert line.leg.take() == EVENT + ERROR


# --- the client's pace -------------------------------------------------------------------------------------


async def test_slow_client_makes_the_engine_wait(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HIGH_WATER", 3 * len(EVENT))
    line.leg.on_head(200, SSE)
    for _ in range(3):
        line.leg.on_data(EVENT)
    assert line.sent.connection.log == []
    line.leg.on_data(EVENT)
    line.leg.on_data(EVENT)  # was under way
    assert line.sent.connection.log == ["pause"]
    # The engine is not late while it is made to wait.
    assert line.leg.due == inf
    assert line.leg.take() == 5 * EVENT
    assert line.sent.connection.log == ["pause", "resume"]
    assert line.leg.due == pytest.approx(line.loop.time() + 5.0, abs=0.5)
    # What was taken counts no more.
    for _ in range(3):
        line.leg.on_data(EVENT)
    assert line.sent.connection.log == ["pause", "resume"]


async def test_stream_that_ended_while_paused_is_waited_for_no_more(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is another leg's by now, and its clock would fail a leg that is done."""
    monkeypatch.setattr(module, "_HIGH_WATER", 1)
    line.leg.on_head(200, SSE)
    line.leg.on_data(EVENT + DONE)
    assert line.sent.connection.log == ["pause"]
    line.leg.on_end()
    assert line.leg.done
    assert line.leg.take() == EVENT + DONE
    assert line.leg.due == inf
    assert line.sent.connection.log == ["pause"]


async def test_dissolved_leg_tells_nobody(line: Line) -> None:
    line.leg.dissolve()
    line.leg.on_failed(Fault.BROKEN, "x")
    assert line.leg.failure is not None
    assert line.owner.failed == []


async def test_forgiven_leg_has_not_failed(line: Line) -> None:
    line.leg.expire()
    line.leg.forgive()
    assert line.leg.failure is None


# --- prefill's streams: nobody reads them, they only have to be well ---------------------------------------


async def test_prefill_stream_is_not_kept() -> None:
    line = Line(Side.PREFILL)
    line.leg.on_head(200, SSE)
    for _ in range(100):
        line.leg.on_data(EVENT)
    assert line.leg.take() == b""
    assert line.owner.moved == 0
    line.leg.on_data(DONE)
    line.leg.on_end()
    assert (line.leg.done, line.owner.moved) == (True, 1)


@pytest.mark.parametrize("cut", [0, len(ERROR) // 2])
async def test_error_in_a_prefill_stream_fails_it_at_once(cut: int) -> None:
    line = Line(Side.PREFILL)
    line.leg.on_head(200, SSE)
    for piece in filter(None, (EVENT + ERROR[:cut], ERROR[cut:])):
        line.leg.on_data(piece)
    assert line.failure.kind is FailureKind.ABORTED
    assert line.sent.connection.log == ["close"]


async def test_error_that_ends_a_prefill_stream() -> None:
    line = Line(Side.PREFILL)
    line.leg.on_head(200, SSE)
    line.leg.on_data(ERROR.strip())
    line.leg.on_end()
    assert line.failure.kind is FailureKind.ABORTED


async def test_prefill_stream_without_its_end_is_broken() -> None:
    line = Line(Side.PREFILL)
    line.leg.on_head(200, SSE)
    line.leg.on_data(EVENT)
    line.leg.on_end()
    assert line.failure.kind is FailureKind.BROKEN


# --- traces ------------------------------------------------------------------------------------------------


class Trace:
    def __init__(self) -> None:
        self.ends: list[dict[str, Any]] = []

    def end(self, now: float, **how: Any) -> None:
        self.ends.append(how)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("done", {"status": 200, "error": ""}),
        ("closed", {"status": 0, "error": "cancelled"}),
        ("broken", {"status": 0, "error": "broken"}),
        ("status", {"status": 500, "error": "status"}),
    ],
)
async def test_trace_ends_with_the_leg(line: Line, how: str, told: dict[str, Any]) -> None:
    trace: Any = Trace()
    line.leg.trace = trace
    if how == "done":
        line.answer(200, b"{}")
    elif how == "closed":
        line.leg.close()
    elif how == "broken":
        line.leg.on_failed(Fault.BROKEN, "x")
    else:
        line.answer(500, b"{}")
    await asyncio.sleep(0)
    assert trace.ends == [told]
