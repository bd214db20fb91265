"""One request through a router: what both engines get, what the client gets, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from typing import Any

import pytest
from aiohttp import web
from tests.unit.router.asking import (
    CHAT,
    CHAT_PATH,
    GENERATE,
    STREAMED,
    assert_ended,
    error_of,
    outcomes,
    rooms,
    stream_error,
)
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
from plait.router.breaker import Breaker, BreakerRules

# --- when all is well -------------------------------------------------------------------------------------


async def test_both_engines_get_the_same_body_and_the_answer_is_decodes(router: RunningRouter) -> None:
    router.prefill.behave = replies({"from": "prefill"})
    code, body = await router.post(CHAT_PATH, CHAT)
    assert code == 200
    (sent,), (same,) = router.prefill.seen, router.decode.seen
    assert sent.raw == same.raw
    assert json.loads(body) == whole(same)
    assert sent.body["bootstrap_host"] == "127.0.0.1"
    assert sent.body["bootstrap_port"] == 8998
    await router.until_idle()
    assert not router.prefill.aborts
    assert not router.decode.aborts
    assert outcomes(router, "ok") == 1


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
    async with router.http.post(router.url + CHAT_PATH, json=STREAMED) as response:
        assert await asyncio.wait_for(response.content.readany(), 5.0) == first
        go_on.set()
        assert await response.read() == b"".join(rest)


async def test_late_prefill_answer_does_not_hold_the_client_up(lab: Lab) -> None:
    router = await lab.router(deadlines=brief(linger=0.5))
    router.prefill.behave = hang
    began = time.monotonic()
    code, _ = await router.post(CHAT_PATH, CHAT)
    assert code == 200
    assert time.monotonic() - began < router.within(0.3)
    # ... but is not waited for without end either.
    await router.until(lambda: bool(router.prefill.aborts))
    await router.until_idle()
    assert not router.decode.aborts


async def test_prefill_that_fails_after_decodes_answer_is_counted(lab: Lab) -> None:
    router = await lab.router()
    router.prefill.behave = status(500, "too late", delay=0.1)
    code, _ = await router.post(CHAT_PATH, CHAT)
    assert code == 200
    await router.until_idle()
    prefill = router.state.workers.worker(router.prefill.url)
    assert prefill is not None
    assert sum(prefill.breaker._bad) == 1
    assert outcomes(router, "ok") == 1


async def test_worker_counts_its_legs(router: RunningRouter) -> None:
    router.decode.behave = wait_for_ever
    task = asyncio.create_task(router.post(CHAT_PATH, CHAT))
    await router.until(lambda: bool(router.prefill.seen))
    prefill, decode = router.state.workers.workers
    await router.until(lambda: prefill.in_flight == 0)
    assert decode.in_flight == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await router.until_idle()


# --- batches and logprobs ----------------------------------------------------------------------------------


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


# --- the end -----------------------------------------------------------------------------------------------


async def test_shutdown_ends_what_is_under_way(router: RunningRouter) -> None:
    router.prefill.behave = hang
    sent = chat_events(["a"])[:2]
    router.decode.behave = streams(sent, then="stall")
    async with router.http.post(router.url + CHAT_PATH, json=STREAMED) as response:
        got = b""
        while len(got) < len(b"".join(sent)):
            got += await response.content.readany()
        assert await router.state.lifecycle.drain(seconds=0.05) is False
        got += await response.read()
    assert response.status == 200
    assert stream_error(got)["code"] == "draining"
    await assert_ended(router, router.prefill, router.decode, by=time.monotonic())
    assert outcomes(router, "draining") == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_whole_request_has_a_deadline(lab: Lab, streamed: bool) -> None:
    router = await lab.router(deadlines=brief(total=0.5))
    router.prefill.behave = hang
    # Never idle for long: only the request as a whole takes too long.
    router.decode.behave = streams(chat_events(["a"] * 500), pause=0.02) if streamed else wait_for_ever
    began = time.monotonic()
    code, body = await router.post(CHAT_PATH, STREAMED if streamed else CHAT)
    ended = time.monotonic()
    assert ended - began < router.within(1.0)
    assert code == (200 if streamed else 504)
    error = (stream_error if streamed else error_of)(body)
    assert error["code"] == "total_timeout"
    assert "0.5 s" in error["message"]
    await assert_ended(router, router.prefill, router.decode, by=ended)
    assert outcomes(router, "total_timeout") == 1
    assert not any(sum(w.breaker._bad) for w in router.state.workers.workers), "nobody's fault"


async def test_many_at_once_all_end(lab: Lab) -> None:
    """A mix of fates at once: every request is answered, nothing is left, every room is its own."""
    router = await lab.router(deadlines=brief(first_byte=3.0, linger=1.0))
    for worker in router.state.workers.workers:
        # Which would keep most of them from the engines.
        worker.breaker = Breaker(BreakerRules(failures=1000, at_least=1000))
    fates: list[Behaviour] = [answer, status(400), status(500), reset, hang]

    async def fate(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        which = seen.body[f"{engine.role}_fate"]
        return await fates[which](engine, request, seen)

    router.prefill.behave = router.decode.behave = fate
    bodies = [
        CHAT | {"stream": bool(i % 2), "prefill_fate": (i // 2) % 5, "decode_fate": (i // 10) % 5}
        for i in range(50)
    ]
    began = time.monotonic()
    answers = await asyncio.gather(*(router.post(CHAT_PATH, b) for b in bodies))
    assert time.monotonic() - began < router.within(5.0)
    for sent, (code, body) in zip(bodies, answers, strict=True):
        # A prefill that never answers is no failure of a request that decode has answered in full.
        well = sent["decode_fate"] == 0 and sent["prefill_fate"] in (0, 4)
        if well:
            assert code == 200
        elif code == 200:
            # Decode was quicker than prefill's failure, or its stream was under way.
            assert sent["decode_fate"] == 0
        elif code == 400:
            assert json.loads(body)["message"] == "no", "the engine's own answer"
        else:
            error_of(body)
    await router.until_idle()
    used = rooms(router.prefill)
    assert len(set(used)) == len(used) == 50
