"""The heart: whatever fails, both legs end at once, the client is told, and nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import time
from typing import Any

import pytest
from aiohttp import web
from tests.unit.router.conftest import Lab, RunningRouter, brief
from tests.unit.router.stub_engine import (
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
    stream,
    streams,
    wait_for_ever,
    whole,
)

from plait.router.body import Route

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
STREAMED = CHAT | {"stream": True}
GENERATE = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}
# Rotation stays as it is while a test runs: what is tested is what requests notice by themselves.
NO_POLLS = {"poll_interval": 60.0}
ERROR_EVENT = b'data: {"error": {"message": "out of memory", "type": "x", "param": null, "code": 500}}\n\n'
GRACEFUL_ABORT = (
    b'data: {"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "gone"}}}\n\n'
)
# From a leg's failure to the other engine's abort message.
ABORT_WITHIN = 0.2


def error_of(body: bytes) -> dict[str, Any]:
    """The OpenAI error; fails where the form is another one."""
    payload = json.loads(body)
    assert set(payload) == {"error"}
    assert set(payload["error"]) == {"message", "type", "code", "param"}
    assert payload["error"]["message"]
    return dict(payload["error"])


def stream_error(body: bytes) -> dict[str, Any]:
    """The error that ends a broken stream: its last event, no [DONE]."""
    assert b"[DONE]" not in body
    assert body.endswith(b"\n\n")
    return error_of(body.rstrip(b"\n").rsplit(b"\n\n", 1)[-1].removeprefix(b"data: "))


def rids(seen: Seen) -> list[str]:
    rid = seen.body["rid"]
    return rid if isinstance(rid, list) else [rid]


async def assert_both_ended(router: RunningRouter, *, by: float) -> None:
    """Both engines were told to abort what they got, at most ABORT_WITHIN after `by`; nothing is left."""
    await router.until_idle()
    for engine in router.engines:
        if engine.seen:
            await router.until(lambda e=engine: bool(e.aborts))  # type: ignore[misc]
            assert engine.aborts[0][0] in rids(engine.seen[0])
            assert engine.aborts[0][1] - by < router.within(ABORT_WITHIN)


# --- when all is well -------------------------------------------------------------------------------------


async def test_both_engines_get_the_same_body_and_the_answer_is_decodes(router: RunningRouter) -> None:
    router.prefill.behave = replies({"from": "prefill"})
    code, body = await router.post("/v1/chat/completions", CHAT)
    assert code == 200
    (sent,), (same,) = router.prefill.seen, router.decode.seen
    assert sent.raw == same.raw
    assert json.loads(body) == whole(same)
    assert sent.body["bootstrap_host"] == "127.0.0.1"
    assert sent.body["bootstrap_port"] == 8998
    await router.until_idle()
    assert not router.prefill.aborts
    assert not router.decode.aborts


@pytest.mark.parametrize("path", list(Route))
async def test_stream_is_passed_on_byte_for_byte(router: RunningRouter, path: Route) -> None:
    # Odd cuts: writes that end inside an event, inside a UTF-8 character, and one that holds several.
    events = b"".join(chat_events(["Hé", "llo", "…", "\n\n", '"error"']))
    cuts = [0, 7, 8, 150, 151, 400, len(events) - 3, len(events)]
    pieces = [events[a:b] for a, b in itertools.pairwise(cuts)]
    router.decode.behave = streams(pieces, pause=0.01)
    router.prefill.behave = streams([b'data: {"text": "x"}\n\n', DONE])
    code, body = await router.post(path, GENERATE | STREAMED | {"prompt": "x"})
    assert code == 200
    assert body == events


async def test_stream_is_not_collected_before_it_is_sent(router: RunningRouter) -> None:
    first, *rest = chat_events(["a", "b"])
    go_on = asyncio.Event()

    async def behave(_: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        response = await stream(request, [first])
        await go_on.wait()
        for event in rest:
            await response.write(event)
        return response

    router.decode.behave = behave
    async with router.http.post(router.url + "/v1/chat/completions", json=STREAMED) as response:
        assert await asyncio.wait_for(response.content.readany(), 1.0) == first
        go_on.set()
        assert await response.read() == b"".join(rest)


async def test_late_prefill_answer_does_not_hold_the_client_up(lab: Lab) -> None:
    router = await lab.router(deadlines=brief(linger=0.5))
    router.prefill.behave = hang
    began = time.monotonic()
    code, _ = await router.post("/v1/chat/completions", CHAT)
    assert code == 200
    assert time.monotonic() - began < router.within(0.3)
    # ... but is not waited for without end either.
    await router.until(lambda: bool(router.prefill.aborts))
    await router.until_idle()
    assert not router.decode.aborts


async def test_worker_counts_its_legs(router: RunningRouter) -> None:
    router.decode.behave = wait_for_ever
    task = asyncio.create_task(router.post("/v1/chat/completions", CHAT))
    await router.until(lambda: bool(router.prefill.seen))
    prefill, decode = router.state.workers.workers
    await router.until(lambda: prefill.in_flight == 0)
    assert decode.in_flight == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await router.until_idle()


# --- a leg fails before the first byte ---------------------------------------------------------------------

EARLY = {
    "reset": (reset, 502, "broken"),
    "status 500": (status(500, "boom"), 502, "status"),
    "status 503": (status(503, "queue full"), 503, "status"),
    "status 400": (status(400, "too long for the pool"), 400, "status"),
    "status 400 nested": (status(400, "too long for the pool", flat=False), 400, "status"),
    "status 429": (status(429, "slow down"), 429, "status"),
    "never answers": (hang, 504, "timeout"),
    "late 400": (status(400, "late", delay=0.3), 400, "status"),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("name", EARLY)
async def test_leg_that_fails_early_ends_the_other(lab: Lab, name: str, side: str, streamed: bool) -> None:
    behave, code, kind = EARLY[name]
    router = await lab.router(deadlines=brief(first_byte=0.5 if behave is hang else 30.0), **NO_POLLS)
    failing, waiting = (
        (router.prefill, router.decode) if side == "prefill" else (router.decode, router.prefill)
    )
    failing.behave, waiting.behave = behave, wait_for_ever
    if name == "never answers":
        # The other side gives its answer, or both would be late.
        waiting.behave = answer if side == "decode" else streams([b": ping\n\n"] * 40, pause=0.05)
    began = time.monotonic()
    got, body = await router.post("/v1/chat/completions", STREAMED if streamed else CHAT)
    ended = time.monotonic()
    assert ended - began < router.within(1.0)
    if name == "never answers" and side == "prefill":
        # Decode was under way: the failure is told inside its stream.
        assert got == 200
        error = stream_error(body)
    else:
        assert got == code
        error = error_of(body)
    assert error["code"] == f"{side}_{kind}"
    if kind == "status" and code < 504 and name != "status 500":
        assert error["message"] in ("too long for the pool", "slow down", "queue full", "late")
    await assert_both_ended(router, by=ended)


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_refused_connection_ends_the_other_and_leaves_rotation(lab: Lab, side: str) -> None:
    router = await lab.router(**NO_POLLS)
    failing, waiting = (
        (router.prefill, router.decode) if side == "prefill" else (router.decode, router.prefill)
    )
    waiting.behave = wait_for_ever
    await failing.stop()
    began = time.monotonic()
    code, body = await router.post("/v1/chat/completions", CHAT)
    ended = time.monotonic()
    assert ended - began < router.within(0.5)
    assert code == 502
    assert error_of(body)["code"] == f"{side}_refused"
    await assert_both_ended(router, by=ended)
    # The next request does not try it again.
    code, body = await router.post("/v1/chat/completions", CHAT)
    assert code == 503
    assert error_of(body)["code"] == "no_pair"
    assert len(waiting.seen) == 1


async def test_engine_that_takes_no_connection_is_given_up(lab: Lab) -> None:
    router = await lab.router(deadlines=brief(connect=0.5), **NO_POLLS)
    router.decode.behave = wait_for_ever
    # A listener whose queue is full: connects are neither taken nor refused.
    with socket.socket() as full, contextlib.ExitStack() as held:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        worker = next(w for w in router.state.workers.workers if w.side == "prefill")
        worker.url = f"http://127.0.0.1:{full.getsockname()[1]}"
        router.state.workers._by_url[worker.url] = worker
        began = time.monotonic()
        code, body = await router.post("/v1/chat/completions", CHAT)
        assert time.monotonic() - began < router.within(1.0)
    assert code == 502
    assert error_of(body)["code"] == "prefill_refused"
    await router.until(lambda: bool(router.decode.aborts))


ERROR_200 = {
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
    await assert_both_ended(router, by=ended)


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
    code, body = await router.post("/v1/chat/completions", STREAMED)
    assert code == 502
    assert error_of(body)["code"] == "prefill_broken"
    await assert_both_ended(router, by=time.monotonic())


async def test_both_legs_refuse_the_request_and_one_answer_says_so(router: RunningRouter) -> None:
    router.prefill.behave, router.decode.behave = status(400, "bad prompt"), status(400, "bad prompt")
    code, body = await router.post("/v1/chat/completions", CHAT)
    assert code == 400
    assert error_of(body)["message"] == "bad prompt"


async def test_too_large_answer_is_not_kept(lab: Lab) -> None:
    router = await lab.router(max_answer_bytes=1000)
    router.decode.behave = replies({"text": "x" * 2000})
    code, body = await router.post("/v1/chat/completions", CHAT)
    assert code == 502
    assert error_of(body)["code"] == "decode_too_large"


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

    router.decode.behave = behave
    code, body = await router.post("/v1/chat/completions", CHAT)
    assert code == 502
    assert error_of(body)["code"] == "decode_broken"
    await assert_both_ended(router, by=time.monotonic())


# --- a leg fails after the first byte ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "kind", "within"),
    [("die", "broken", 0.5), ("end", "broken", 0.5), ("stall", "timeout", 1.5)],
)
async def test_decode_stream_that_breaks_ends_with_an_error_event(
    lab: Lab, then: str, kind: str, within: float
) -> None:
    router = await lab.router(deadlines=brief(idle=1.0))
    sent = chat_events(["Hel", "lo"])[:3]
    router.decode.behave = streams(sent, then=then)
    began = time.monotonic()
    code, body = await router.post("/v1/chat/completions", STREAMED)
    ended = time.monotonic()
    assert code == 200
    assert ended - began < router.within(within)
    assert body.startswith(b"".join(sent))
    assert stream_error(body)["code"] == f"decode_{kind}"
    await assert_both_ended(router, by=ended)


async def test_error_event_stands_apart_from_a_torn_event(router: RunningRouter) -> None:
    torn = chat_events(["Hello"])[1][:40]
    router.decode.behave = streams([torn], then="die")
    _, body = await router.post("/v1/chat/completions", STREAMED)
    assert body.startswith(torn + b"\n\ndata: ")
    assert stream_error(body)["code"] == "decode_broken"


async def test_prefill_that_fails_late_ends_the_stream(router: RunningRouter) -> None:
    sent = chat_events(["Hel", "lo"])[:2]
    router.prefill.behave = status(500, "transfer failed", delay=0.3)
    router.decode.behave = streams(sent, then="stall")
    code, body = await router.post("/v1/chat/completions", STREAMED)
    ended = time.monotonic()
    assert code == 200
    assert body.startswith(b"".join(sent))
    assert "transfer failed" in stream_error(body)["message"]
    await assert_both_ended(router, by=ended)


async def test_decodes_own_error_event_is_passed_on_and_counted(router: RunningRouter) -> None:
    events = [*chat_events(["a"])[:2], ERROR_EVENT, DONE]
    router.decode.behave = streams(events)
    code, body = await router.post("/v1/chat/completions", STREAMED)
    assert code == 200
    assert body == b"".join(events)
    await router.until(lambda: bool(router.decode.aborts))
    assert b'outcome="decode_failed",route="/v1/chat/completions"} 1.0' in router.state.metrics.render()


async def test_decodes_error_before_all_else_is_a_status(router: RunningRouter) -> None:
    router.decode.behave = streams([ERROR_EVENT, DONE])
    code, body = await router.post("/v1/chat/completions", STREAMED)
    assert code == 502
    assert "out of memory" in error_of(body)["message"]


# --- the client leaves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_client_that_leaves_before_the_first_token_ends_both(
    router: RunningRouter, streamed: bool
) -> None:
    router.prefill.behave, router.decode.behave = hang, wait_for_ever
    task = asyncio.create_task(router.post("/v1/chat/completions", STREAMED if streamed else CHAT))
    await router.until(lambda: bool(router.prefill.seen and router.decode.seen))
    task.cancel()
    left = time.monotonic()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await assert_both_ended(router, by=left)
    # Their connections are closed too, for an engine that has not entered the request yet.
    await router.until(lambda: bool(router.prefill.left))
    assert b'outcome="client_gone",route="/v1/chat/completions"} 1.0' in router.state.metrics.render()


async def test_client_that_leaves_in_the_stream_ends_both(router: RunningRouter) -> None:
    router.prefill.behave = hang
    router.decode.behave = streams(chat_events(["a", "b"])[:2], then="stall")
    response = await router.http.post(router.url + "/v1/chat/completions", json=STREAMED)
    await response.content.readany()
    response.close()
    left = time.monotonic()
    await assert_both_ended(router, by=left)
    await router.until(lambda: bool(router.prefill.left and router.decode.left))


async def test_client_that_reads_nothing_holds_nothing(lab: Lab) -> None:
    """A stalled reader stops the engine's stream (no buffer grows), and is given up after a while."""
    router = await lab.router(deadlines=brief(client_stall=1.0))
    written = 0
    event = b"data: " + b"x" * 65_000 + b"\n\n"

    async def flood(_: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        nonlocal written
        response = await stream(request, [])
        for _ in range(2000):
            await response.write(event)
            written += len(event)
        return response

    router.prefill.behave, router.decode.behave = hang, flood
    host, port = router.url.removeprefix("http://").split(":")
    body = json.dumps(STREAMED).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head + body)
        await router.until(lambda: bool(router.decode.aborts))
        await router.until_idle()
    assert 0 < written < 32 << 20


# --- batches, logprobs, the end ----------------------------------------------------------------------------


async def test_batch_has_a_room_and_an_id_each_and_all_are_aborted(router: RunningRouter) -> None:
    router.prefill.behave, router.decode.behave = status(400, "no"), wait_for_ever
    await router.post("/v1/completions", {"model": "tiny", "prompt": ["a", "b", "c"]})
    sent = router.decode.prompts[0]
    assert len(set(sent["bootstrap_room"])) == len(set(sent["rid"])) == 3
    await router.until(lambda: {rid for rid, _ in router.decode.aborts} == set(sent["rid"]))


def logprobs_of(prompt: list[Any], output: list[Any]) -> dict[str, Any]:
    meta = {"id": "x", "input_token_logprobs": prompt, "output_token_logprobs": output}
    return {"text": "t", "meta_info": meta}


async def test_prompt_logprobs_come_from_prefill(router: RunningRouter) -> None:
    prompt, output = [[None, 1, None], [-0.5, 2, None]], [[-0.1, 7, None]]
    router.prefill.behave = replies(logprobs_of(prompt, output), delay=0.2)
    router.decode.behave = replies(logprobs_of([], output))
    code, body = await router.post("/generate", GENERATE | {"return_logprob": True, "logprob_start_len": 0})
    assert code == 200
    assert json.loads(body) == logprobs_of(prompt, output)


async def test_prefill_failure_while_its_logprobs_are_waited_for(router: RunningRouter) -> None:
    router.prefill.behave = status(500, "boom", delay=0.2)
    router.decode.behave = replies(logprobs_of([], []))
    code, body = await router.post("/generate", GENERATE | {"return_logprob": True})
    assert code == 502
    assert error_of(body)["code"] == "prefill_status"


async def test_answers_that_do_not_fit_are_an_error(router: RunningRouter) -> None:
    router.prefill.behave = replies([logprobs_of([], [])])
    router.decode.behave = replies(logprobs_of([], []))
    code, body = await router.post("/generate", GENERATE | {"return_logprob": True})
    assert code == 502
    assert "cannot be merged" in error_of(body)["message"]


async def test_shutdown_ends_what_is_under_way(router: RunningRouter) -> None:
    router.prefill.behave = hang
    router.decode.behave = streams(chat_events(["a"])[:2], then="stall")
    task = asyncio.create_task(router.post("/v1/chat/completions", STREAMED))
    await router.until(lambda: bool(router.decode.seen))
    await asyncio.sleep(0.1)
    assert await router.state.lifecycle.drain(seconds=0.1) is False
    code, body = await task
    assert code == 200
    assert stream_error(body)["code"] == "draining"
    await assert_both_ended(router, by=time.monotonic())


async def test_many_at_once_all_end(lab: Lab) -> None:
    """A mix of fates at once: every request is answered, nothing is left, every room is its own."""
    router = await lab.router(deadlines=brief(first_byte=2.5, linger=1.0))
    fates: list[Behaviour] = [answer, status(400), status(500), reset, hang]

    async def fate(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        which = seen.body[f"{engine.role}_fate"]
        return await fates[which](engine, request, seen)

    router.prefill.behave = router.decode.behave = fate
    bodies = [
        CHAT | {"stream": bool(i % 2), "prefill_fate": (i // 2) % 5, "decode_fate": (i // 10) % 5}
        for i in range(100)
    ]
    began = time.monotonic()
    answers = await asyncio.gather(*(router.post("/v1/chat/completions", b) for b in bodies))
    assert time.monotonic() - began < router.within(5)
    for sent, (code, body) in zip(bodies, answers, strict=True):
        # A prefill that never answers is no failure of a request that decode has answered in full.
        well = sent["decode_fate"] == 0 and sent["prefill_fate"] in (0, 4)
        if well:
            assert code == 200
        elif code == 200:
            # Decode was quicker than prefill's failure, or its stream was under way.
            assert sent["decode_fate"] == 0
        else:
            error_of(body)
    await router.until_idle()
    rooms = [p["bootstrap_room"] for p in router.prefill.prompts]
    assert len(set(rooms)) == len(rooms) == 100
