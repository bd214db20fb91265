"""Several samples of a prompt: legs and rooms of their own, one answer, and one failure for all."""

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
    NO_POLLS,
    STREAMED,
    error_of,
    failures,
    outcomes,
    rids,
    rooms,
    stream_error,
)
from tests.unit.router.conftest import Lab, RunningRouter
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
)


def each(*behaviours: Behaviour) -> Behaviour:
    """The n-th request gets the n-th behaviour, those after them the last."""
    count = 0

    async def behave(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        nonlocal count
        count += 1
        return await behaviours[min(count, len(behaviours)) - 1](engine, request, seen)

    return behave


def says(text: str, *, after: asyncio.Event | None = None) -> Behaviour:
    """A chat stream of these words, the last of them `after` something has happened."""

    async def behave(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        *events, finish, done = chat_events(text.split())
        response = await stream(request, events)
        if after is not None:
            await after.wait()
        for event in (finish, done):
            await response.write(event)
        return response

    return behave


def texts(body: bytes) -> dict[int, str]:
    """The text of each choice of a chat stream."""
    found: dict[int, str] = {}
    for event in body.split(b"\n\n"):
        if event and event != b"data: [DONE]":
            for choice in json.loads(event[6:])["choices"]:
                found[choice["index"]] = found.get(choice["index"], "") + (
                    choice["delta"].get("content") or ""
                )
    return found


def checked_legs(router: RunningRouter, legs: int) -> None:
    """Both engines got so many requests of one sample, each pair with a room and an id of its own."""
    used = rooms(router.prefill)
    assert len(used) == len(set(used)) == legs
    assert sorted(rooms(router.decode)) == sorted(used)
    by_id = [{tuple(rids(s)) for s in e.seen} for e in (router.prefill, router.decode)]
    assert by_id[0] == by_id[1]
    for prompt in (*router.prefill.prompts, *router.decode.prompts):
        assert prompt.get("n", 1) == 1
        assert prompt.get("sampling_params", {}).get("n", 1) == 1


# --- when all is well --------------------------------------------------------------------------------------


async def test_whole_chat(router: RunningRouter) -> None:
    code, body = await router.post(CHAT_PATH, CHAT | {"n": 3})
    assert code == 200
    answer = json.loads(body)
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    await router.until_idle()
    checked_legs(router, 3)
    assert outcomes(router, "ok") == 1


async def test_batch_of_completions(router: RunningRouter) -> None:
    async def batch(engine: StubEngine, request: web.Request, seen: Seen) -> web.Response:
        number = len(engine.seen)
        choices = [
            {"index": i, "text": f"{prompt}{number}", "logprobs": None, "finish_reason": "stop"}
            for i, prompt in enumerate(seen.body["prompt"])
        ]
        usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
        head = {"id": "x", "object": "text_completion", "created": 1, "model": "tiny"}
        return web.json_response(head | {"choices": choices, "usage": usage})

    router.prefill.behave = router.decode.behave = batch
    code, body = await router.post("/v1/completions", {"prompt": ["a", "b"], "n": 2})
    assert code == 200
    answer = json.loads(body)
    # By prompt, then by sample.
    assert [(c["index"], c["text"][0]) for c in answer["choices"]] == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}
    checked_legs(router, 4)
    assert all(len(p["bootstrap_room"]) == 2 for p in router.decode.prompts)


async def test_native_route(router: RunningRouter) -> None:
    code, body = await router.post("/generate", {"text": "x", "sampling_params": {"n": 2, "top_k": 1}})
    assert code == 200
    assert [r["text"] for r in json.loads(body)] == [" a b", " a b"]
    checked_legs(router, 2)
    assert all(p["sampling_params"] == {"n": 1, "top_k": 1} for p in router.decode.prompts)


async def test_streams_are_one_stream(router: RunningRouter) -> None:
    router.decode.behave = each(says("one two"), says("three"), says("four five six"))
    code, body = await router.post(CHAT_PATH, STREAMED | {"n": 3})
    assert code == 200
    assert sorted(texts(body).values()) == ["fourfivesix", "onetwo", "three"]
    assert sorted(texts(body)) == [0, 1, 2]
    assert body.count(DONE) == 1
    assert body.endswith(DONE)
    events = [json.loads(e[6:]) for e in body.split(b"\n\n")[:-2]]
    assert len({e["id"] for e in events}) == 1
    checked_legs(router, 3)
    await router.until_idle()
    assert not router.decode.aborts
    assert not router.prefill.aborts


async def test_quick_sample_is_not_held_up_by_a_slow_one(router: RunningRouter) -> None:
    go_on = asyncio.Event()
    router.decode.behave = each(says("slow", after=go_on), says("quick"))
    async with router.http.post(router.url + CHAT_PATH, json=STREAMED | {"n": 2}) as response:
        got = b""
        async with asyncio.timeout(5):
            while got.count(b'"stop"') < 1:
                got += await response.content.readany()
        assert DONE not in got
        go_on.set()
        got += await response.read()
    assert sorted(texts(got).values()) == ["quick", "slow"]
    assert got.endswith(DONE)


async def test_prompt_logprobs_of_each_sample(router: RunningRouter) -> None:
    def logprobs(prompt: list[Any], text: str) -> dict[str, Any]:
        meta = {"id": "x", "input_token_logprobs": prompt, "prompt_tokens": 1, "completion_tokens": 1}
        return {"text": text, "meta_info": meta}

    router.prefill.behave = replies(logprobs([[None, 1, None]], ""), delay=0.1)
    router.decode.behave = each(replies(logprobs([], "a")), replies(logprobs([], "b")))
    body = {"text": "x", "sampling_params": {"n": 2}, "return_logprob": True, "logprob_start_len": 0}
    code, got = await router.post("/generate", body)
    assert code == 200
    results = json.loads(got)
    assert sorted(r["text"] for r in results) == ["a", "b"]
    assert all(r["meta_info"]["input_token_logprobs"] == [[None, 1, None]] for r in results)


# --- one fails ---------------------------------------------------------------------------------------------


async def all_told(router: RunningRouter, engine: StubEngine, count: int) -> None:
    """So many of the engine's requests were told to abort."""
    await router.until(lambda: len({rid for rid, _ in engine.aborts}) == count)
    assert {rid for rid, _ in engine.aborts} <= {r for s in engine.seen for r in rids(s)}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("fails", "code", "kind"),
    [(reset, 502, "broken"), (status(500), 502, "status"), (status(400), 400, "status")],
)
async def test_sample_that_fails_before_the_first_byte(
    lab: Lab, fails: Behaviour, code: int, kind: str, streamed: bool
) -> None:
    router = await lab.router(retries=0, **NO_POLLS)
    for worker in router.state.workers.workers:
        worker.pool.drop_idle()
    router.prefill.behave, router.decode.behave = hang, each(wait_for_ever, fails, wait_for_ever)
    got, body = await router.post(CHAT_PATH, (STREAMED if streamed else CHAT) | {"n": 3})
    left = time.monotonic()
    assert got == code
    if code == 400:
        assert json.loads(body)["message"] == "no", "the engine's own answer"
    else:
        assert error_of(body)["code"] == f"decode_{kind}"
    await router.until_idle()
    assert failures(router, router.decode, kind) == 1
    assert outcomes(router, "decode_failed") == 1
    await all_told(router, router.prefill, 3)
    await all_told(router, router.decode, 3 if kind == "broken" else 2)
    assert router.prefill.aborts[0][1] - left < router.within(0.2)
    breakers = {str(w.side): sum(w.breaker._bad) for w in router.state.workers.workers}
    assert breakers == {"prefill": 0, "decode": int(code != 400)}


async def test_sample_that_fails_in_the_stream(router: RunningRouter) -> None:
    started = asyncio.Event()

    async def begin(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        response = await stream(request, chat_events(["well"])[:2])
        started.set()
        await asyncio.sleep(3600)
        return response

    async def fail(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        await started.wait()
        await asyncio.sleep(0.05)
        return await streams([ERROR_EVENT, DONE])(engine, request, seen)

    router.prefill.behave, router.decode.behave = hang, each(begin, fail)
    code, body = await router.post(CHAT_PATH, STREAMED | {"n": 2})
    assert code == 200
    error = stream_error(body)
    assert (error["code"], error["message"]) == ("decode_aborted", "The decode engine failed: out of memory")
    assert b"well" in body
    await router.until_idle()
    await all_told(router, router.prefill, 2)
    await all_told(router, router.decode, 2)


async def test_sample_whose_stream_breaks_off(router: RunningRouter) -> None:
    router.prefill.behave = hang
    router.decode.behave = each(
        streams(chat_events(["well"])[:2], then="stall"), streams(chat_events(["torn"])[:2], then="die")
    )
    code, body = await router.post(CHAT_PATH, STREAMED | {"n": 2})
    assert code == 200
    assert stream_error(body)["code"] == "decode_broken"
    await router.until_idle()


async def test_sample_of_an_unknown_form(router: RunningRouter) -> None:
    router.decode.behave = each(answer, replies({"odd": 1}))
    code, body = await router.post(CHAT_PATH, CHAT | {"n": 2})
    assert code == 502
    error = error_of(body)
    assert error["code"] == "decode_broken"
    assert "cannot be merged" in error["message"]


async def test_further_try_is_of_all_samples_with_fresh_rooms(lab: Lab) -> None:
    engines = [await lab.engine(side) for side in ("prefill", "decode", "decode")]
    router = await lab.router(*engines, ready=False, decode_policy="round-robin", **NO_POLLS)
    await router.until(lambda: len(router.state.workers.pairs()) == 2)
    for worker in router.state.workers.workers:
        worker.pool.drop_idle()
    failing, well = engines[1:]
    failing.behave = each(wait_for_ever, status(500))
    code, body = await router.post(CHAT_PATH, CHAT | {"n": 2})
    assert code == 200
    assert [c["index"] for c in json.loads(body)["choices"]] == [0, 1]
    await router.until_idle()
    assert (len(failing.seen), len(well.seen)) == (2, 2)
    used = rooms(failing, well)
    assert len(set(used)) == len(used) == 4


@pytest.mark.parametrize("streamed", [False, True])
async def test_client_that_leaves_ends_all_samples(router: RunningRouter, streamed: bool) -> None:
    router.prefill.behave = hang
    router.decode.behave = streams(chat_events(["a"])[:2], then="stall") if streamed else wait_for_ever
    body = (STREAMED if streamed else CHAT) | {"n": 3}
    task = asyncio.create_task(router.post(CHAT_PATH, body))
    await router.until(lambda: len(router.decode.seen) == len(router.prefill.seen) == 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await router.until_idle()
    await all_told(router, router.prefill, 3)
    await all_told(router, router.decode, 3)
    assert outcomes(router, "client_gone") == 1


async def test_late_prefill_of_a_sample_does_not_hold_the_client_up(router: RunningRouter) -> None:
    router.prefill.behave = each(answer, status(500, "late", delay=0.1), answer)
    code, _ = await router.post(CHAT_PATH, CHAT | {"n": 3})
    assert code == 200
    await router.until_idle()
    assert failures(router, router.prefill, "status") == 1
