"""The heart: whatever fails, both legs end at once, the client is told, and nothing hangs."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from aiohttp import web
from tests.unit.router.asking import (
    CHAT,
    CHAT_PATH,
    ERROR_EVENT,
    GENERATE,
    NO_POLLS,
    STREAMED,
    assert_ended,
    error_of,
    failures,
    outcomes,
    stream_error,
)
from tests.unit.router.conftest import Lab, RunningRouter, brief
from tests.unit.router.raw_server import Line, raw_server
from tests.unit.router.stub_engine import (
    CHUNK,
    DONE,
    Behaviour,
    Seen,
    StubEngine,
    answer,
    chat_events,
    hang,
    replies,
    reset,
    status,
    streams,
    wait_for_ever,
)

GRACEFUL_ABORT = (
    b'data: {"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "gone"}}}\n\n'
)


def sides(router: RunningRouter, failing: str) -> tuple[StubEngine, StubEngine]:
    """The engine that fails, and the other."""
    pair = (router.prefill, router.decode)
    return pair if failing == "prefill" else pair[::-1]


async def prefilling(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
    """Under way for as long as the request is, and never late."""
    return await streams([b": ping\n\n"] * 1000, pause=0.05)(engine, request, seen)


def blamed(router: RunningRouter) -> set[str]:
    """Sides whose breaker has counted a failure."""
    return {str(w.side) for w in router.state.workers.workers if sum(w.breaker._bad)}


# --- before the first byte ---------------------------------------------------------------------------------

# What it does, what the client gets, kind of failure, whether the engine's worker is to blame.
EARLY: dict[str, tuple[Behaviour, int, str, bool]] = {
    "reset": (reset, 502, "broken", True),
    "status 500": (status(500, "boom"), 502, "status", True),
    "status 503": (status(503, "queue full"), 503, "status", False),
    "status 400": (status(400, "too long for the pool"), 400, "status", False),
    "status 400 nested": (status(400, "too long for the pool", flat=False), 400, "status", False),
    "status 429": (status(429, "slow down"), 429, "status", False),
    "never answers": (hang, 504, "timeout", True),
    "late 400": (status(400, "late", delay=0.2), 400, "status", False),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("name", EARLY)
async def test_leg_that_fails_early_ends_the_other(lab: Lab, name: str, side: str, streamed: bool) -> None:
    behave, code, kind, to_blame = EARLY[name]
    router = await lab.router(deadlines=brief(first_byte=0.5 if behave is hang else 30.0), **NO_POLLS)
    failing, waiting = sides(router, side)
    failing.behave, waiting.behave = behave, wait_for_ever
    if name == "never answers":
        # The other side gives its answer, or both would be late.
        waiting.behave = answer if side == "decode" else streams([b": ping\n\n"] * 40, pause=0.05)
    began = time.monotonic()
    got, body = await router.post(CHAT_PATH, STREAMED if streamed else CHAT)
    ended = time.monotonic()
    assert ended - began < router.within(1.0)
    if name == "never answers" and side == "prefill":
        # Decode was under way: the failure is told inside its stream.
        assert got == 200
        error = stream_error(body)
    elif 400 <= code < 500:
        # As the engine said it.
        assert got == code
        said = json.loads(body)
        assert "message" in said or "message" in said["error"]
        error = {"code": "prefill_status" if side == "prefill" else "decode_status"}
    else:
        assert got == code
        error = error_of(body)
    assert error["code"] == f"{side}_{kind}"
    told = [] if kind == "status" else [failing]
    if waiting.behave is not answer:
        told.append(waiting)
    await assert_ended(router, *told, by=ended)
    assert failures(router, failing, kind) == 1
    assert blamed(router) == ({side} if to_blame else set())
    assert outcomes(router, f"{side}_failed") == 1


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_refused_connection_ends_the_other_and_leaves_rotation(lab: Lab, side: str) -> None:
    router = await lab.router(**NO_POLLS)
    failing, waiting = sides(router, side)
    waiting.behave = wait_for_ever
    await failing.stop()
    began = time.monotonic()
    code, body = await router.post(CHAT_PATH, CHAT)
    ended = time.monotonic()
    assert ended - began < router.within(0.5)
    assert code == 502
    assert error_of(body)["code"] == f"{side}_refused"
    await assert_ended(router, waiting, by=ended)
    assert blamed(router) == {side}
    # The next request does not try it again.
    code, body = await router.post(CHAT_PATH, CHAT)
    assert code == 503
    assert error_of(body)["code"] == "no_pair"
    assert len(waiting.seen) == 1


async def test_decode_that_is_late_for_want_of_prefill_is_not_blamed(lab: Lab) -> None:
    """Both are silent: decode waits for a prefill that never sends."""
    router = await lab.router(deadlines=brief(first_byte=0.4), **NO_POLLS)
    router.prefill.behave = router.decode.behave = hang
    code, body = await router.post(CHAT_PATH, CHAT)
    ended = time.monotonic()
    assert code == 504
    assert error_of(body)["code"] == "prefill_timeout"
    await assert_ended(router, router.prefill, router.decode, by=ended)
    assert blamed(router) == {"prefill"}
    assert (failures(router, router.prefill, "timeout"), failures(router, router.decode, "timeout")) == (1, 0)


ERROR_200: dict[str, tuple[Behaviour, str]] = {
    "error event": (streams([ERROR_EVENT, DONE]), "out of memory"),
    "graceful abort": (streams([GRACEFUL_ABORT, DONE]), "gone"),
    "whole answer, aborted": (
        replies({"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "gone"}}}),
        "gone",
    ),
    "chat answer, aborted": (replies({"choices": [{"finish_reason": "abort"}]}), "aborted"),
}


@pytest.mark.parametrize("name", ERROR_200)
async def test_prefill_failure_inside_a_200_is_noticed(router: RunningRouter, name: str) -> None:
    router.prefill.behave, message = ERROR_200[name]
    router.decode.behave = wait_for_ever
    code, body = await router.post("/generate", GENERATE | {"stream": True})
    ended = time.monotonic()
    assert code == 502
    assert message in error_of(body)["message"]
    await assert_ended(router, router.prefill, router.decode, by=ended)


async def test_prefill_400_inside_a_200_goes_to_the_client_as_400(router: RunningRouter) -> None:
    reason = {"type": "abort", "message": "prompt is too long", "status_code": 400}
    event = b"data: " + json.dumps({"text": "", "meta_info": {"finish_reason": reason}}).encode() + b"\n\n"
    router.prefill.behave, router.decode.behave = streams([event, DONE]), wait_for_ever
    code, body = await router.post("/generate", GENERATE | {"stream": True})
    assert code == 400
    assert error_of(body)["message"] == "prompt is too long"


@pytest.mark.parametrize("then", ["end", "die"])
async def test_prefill_stream_that_is_cut_off_is_a_failure(router: RunningRouter, then: str) -> None:
    router.prefill.behave, router.decode.behave = streams([b'data: {"a":1}\n\n'], then=then), wait_for_ever
    code, body = await router.post(CHAT_PATH, STREAMED)
    assert code == 502
    assert error_of(body)["code"] == "prefill_broken"
    await assert_ended(router, router.prefill, router.decode, by=time.monotonic())


async def test_both_legs_refuse_the_request_and_one_answer_says_so(router: RunningRouter) -> None:
    router.prefill.behave = router.decode.behave = status(400, "bad prompt", flat=False)
    code, body = await router.post(CHAT_PATH, CHAT)
    assert code == 400
    assert json.loads(body)["error"]["message"] == "bad prompt"


async def test_engines_4xx_goes_to_the_client_byte_for_byte(router: RunningRouter) -> None:
    said = b'{"odd":   "form", "detail": [1]}'

    async def behave(_: StubEngine, request: web.Request, seen: Seen) -> web.Response:
        return web.Response(status=422, body=said, content_type="application/problem+json")

    router.prefill.behave, router.decode.behave = behave, wait_for_ever
    async with router.http.post(router.url + CHAT_PATH, json=CHAT) as response:
        assert (response.status, response.content_type) == (422, "application/problem+json")
        assert await response.read() == said
        assert response.headers["x-request-id"] == router.prefill.prompts[0]["rid"]
    assert len(router.prefill.seen) == 1, "a 4xx is never tried again"


async def test_what_an_engine_says_is_not_logged(
    router: RunningRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """Its words may quote the prompt, as those of a failed validation do."""
    caplog.set_level("DEBUG")
    within = streams([ERROR_EVENT.replace(b"out of", b"secret")])
    for behave in (status(400, "cannot read 'my secret'"), status(500, "secret"), within):
        router.prefill.behave, router.decode.behave = behave, wait_for_ever
        _, body = await router.post(CHAT_PATH, CHAT)
        assert b"secret" in body
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("plait")]
    assert not [line for line in ours if "secret" in line]
    told = [line for line in ours if router.prefill.url in line]
    assert [
        word for word in ("HTTP 400", "HTTP 500", "aborted") if not any(word in line for line in told)
    ] == []


async def test_too_large_answer_is_not_kept(lab: Lab) -> None:
    router = await lab.router(max_answer_bytes=1000)
    router.decode.behave = replies({"text": "x" * 2000})
    code, body = await router.post(CHAT_PATH, CHAT)
    assert code == 502
    assert error_of(body)["code"] == "decode_too_large"
    assert blamed(router) == set()


async def test_answer_that_is_torn_is_an_error_not_half_a_json(router: RunningRouter) -> None:
    async def behave(_: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        response.content_length = 1000
        await response.prepare(request)
        await response.write(b'{"half":')
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()  # type: ignore[attr-defined]
        return response

    router.prefill.behave, router.decode.behave = hang, behave
    code, body = await router.post(CHAT_PATH, CHAT)
    assert code == 502
    assert error_of(body)["code"] == "decode_broken"
    await assert_ended(router, router.prefill, router.decode, by=time.monotonic())


async def test_redirect_is_not_followed(router: RunningRouter) -> None:
    async def behave(engine: StubEngine, request: web.Request, seen: Seen) -> web.Response:
        return web.Response(status=307, headers={"location": engine.url + "/generate"})

    router.prefill.behave, router.decode.behave = behave, wait_for_ever
    code, body = await router.post(CHAT_PATH, CHAT)
    assert code == 502
    assert error_of(body)["code"] == "prefill_status"
    assert len(router.prefill.seen) == 1


GARBAGE = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"y" * 100_000,
    "bad chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello",
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_a_broken_engine(lab: Lab, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def babble(line: Line) -> None:
        await line.request()
        await line.send(GARBAGE[name])
        await line.reader.read()

    router = await lab.router(**NO_POLLS)
    router.prefill.behave = wait_for_ever
    async with raw_server(babble) as server:
        decode = router.state.workers.worker(router.decode.url)
        assert decode is not None
        decode.pool.drop_idle()
        decode.pool.port = int(server.url.rsplit(":", 1)[1])
        code, body = await router.post(CHAT_PATH, CHAT)
        assert code == 502
        assert error_of(body)["code"] == "decode_broken"
        await router.until(lambda: server.ended == len(server.lines))
    await router.until(lambda: bool(router.prefill.aborts))


# --- after the first byte ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "kind", "within"),
    [("die", "broken", 0.5), ("end", "broken", 0.5), ("stall", "timeout", 1.0)],
)
async def test_decode_stream_that_breaks_ends_with_an_error_event(
    lab: Lab, then: str, kind: str, within: float
) -> None:
    router = await lab.router(deadlines=brief(idle=0.5))
    sent = chat_events(["Hel", "lo"])[:3]
    router.prefill.behave, router.decode.behave = prefilling, streams(sent, then=then)
    began = time.monotonic()
    code, body = await router.post(CHAT_PATH, STREAMED)
    ended = time.monotonic()
    assert code == 200
    assert ended - began < router.within(within)
    assert body.startswith(b"".join(sent))
    assert stream_error(body)["code"] == f"decode_{kind}"
    await assert_ended(router, router.prefill, router.decode, by=ended)
    assert blamed(router) == {"decode"}
    assert len(router.decode.seen) == 1, "never tried again after the first byte"


async def test_torn_event_is_left_out(router: RunningRouter) -> None:
    first, second, *_ = chat_events(["Hello"])
    router.decode.behave = streams([first + second[:40]], then="die")
    _, body = await router.post(CHAT_PATH, STREAMED)
    assert body.startswith(first + b'data: {"error":')
    assert stream_error(body)["code"] == "decode_broken"


async def test_stream_that_breaks_within_its_first_event_is_a_status(router: RunningRouter) -> None:
    router.decode.behave = streams([chat_events(["Hello"])[0][:40]], then="die")
    code, body = await router.post(CHAT_PATH, STREAMED)
    assert code == 502
    assert error_of(body)["code"] == "decode_broken"


async def test_prefill_that_fails_late_ends_the_stream(router: RunningRouter) -> None:
    sent = chat_events(["Hel", "lo"])[:2]
    router.prefill.behave = status(500, "transfer failed", delay=0.3)
    router.decode.behave = streams(sent, then="stall")
    code, body = await router.post(CHAT_PATH, STREAMED)
    ended = time.monotonic()
    assert code == 200
    assert body.startswith(b"".join(sent))
    assert "transfer failed" in stream_error(body)["message"]
    await assert_ended(router, router.decode, by=ended)
    assert blamed(router) == {"prefill"}


async def test_decodes_own_error_event_is_passed_on_and_counted(router: RunningRouter) -> None:
    events = [*chat_events(["a"])[:2], ERROR_EVENT]
    router.decode.behave = streams([*events, DONE], pause=0.02)
    code, body = await router.post(CHAT_PATH, STREAMED)
    assert code == 200
    # Without the [DONE] behind it: the official client has to raise.
    assert body == b"".join(events)
    await router.until(lambda: bool(router.decode.aborts))
    assert outcomes(router, "decode_failed") == 1
    assert failures(router, router.decode, "aborted") == 1


async def test_decodes_error_before_all_else_is_a_status(router: RunningRouter) -> None:
    router.decode.behave = streams([ERROR_EVENT, DONE])
    code, body = await router.post(CHAT_PATH, STREAMED)
    assert code == 502
    assert "out of memory" in error_of(body)["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_error_has_no_say_over_headers(router: RunningRouter, stream: bool) -> None:
    """What an engine's answer is wrapped in is the router's: no header of a failed answer leaks."""

    async def behave(_: StubEngine, request: web.Request, seen: Seen) -> web.Response:
        return web.Response(status=500, text="boom", headers={"x-engine": "1", "set-cookie": "a=b"})

    router.prefill.behave, router.decode.behave = behave, wait_for_ever
    body: dict[str, Any] = CHAT | {"stream": stream}
    async with router.http.post(router.url + CHAT_PATH, json=body) as response:
        assert response.status == 502
        assert "x-engine" not in response.headers
        assert response.content_type == "application/json"


@pytest.mark.parametrize("path", [CHAT_PATH, "/generate"])
async def test_end_by_abort_in_the_middle_is_told_as_an_error(lab: Lab, path: str) -> None:
    """Clients take it for an end: the engine's event is passed on, and an error comes behind it."""
    router = await lab.router(**NO_POLLS)
    if path == CHAT_PATH:
        first, *_ = chat_events(["Hel"])
        last = CHUNK % b'{"index":0,"delta":{},"finish_reason":"abort"}'
        asked: dict[str, Any] = STREAMED
    else:
        first, last = b'data: {"text": "Hel", "meta_info": {"finish_reason": null}}\n\n', GRACEFUL_ABORT
        asked = {"text": "x", "stream": True}
    router.decode.behave = streams([first, last, DONE], pause=0.02)
    code, body = await router.post(path, asked)
    assert code == 200
    assert body.startswith(first + last)
    assert stream_error(body)["code"] == "decode_aborted"
    assert failures(router, router.decode, "aborted") == 1
