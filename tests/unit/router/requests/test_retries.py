"""Further tries: on another pair, with fresh rooms, before the first byte only, and not without end."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiohttp import web
from tests.unit.router.asking import (
    CHAT,
    CHAT_PATH,
    ERROR_EVENT,
    NO_POLLS,
    STREAMED,
    count,
    error_of,
    failures,
    outcomes,
    rooms,
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
    streams,
    wait_for_ever,
)

from plait.telemetry import metrics as names


async def four(lab: Lab, **settings: object) -> RunningRouter:
    """A router before two engines of each side, whose choice is by turns."""
    engines = [await lab.engine(side) for side in ("prefill", "prefill", "decode", "decode")]
    how = {"policy": "round-robin", "decode_policy": "round-robin"} | NO_POLLS | settings
    router = await lab.router(*engines, ready=False, **how)
    await router.until(lambda: len(router.state.workers.pairs()) == 4)
    for worker in router.state.workers.workers:
        # What breaks on a connection that health checks have used is another thing: see below.
        worker.pool.drop_idle()
    return router


def first_chosen(router: RunningRouter, side: str) -> tuple[StubEngine, StubEngine]:
    """The engine of that side whose turn is next, and the other."""
    one, other = [e for e in router.engines if e.role == side]
    turns = {w.url: w.last_picked for w in router.state.workers.workers}
    return (one, other) if turns[one.url] <= turns[other.url] else (other, one)


FAILURES: dict[str, Behaviour] = {
    "broken": reset,
    "status": status(500, "boom"),
    "status 503": status(503, "full"),
    "status 401": status(401, "whose key?"),
    "timeout": hang,
    "aborted": replies({"choices": [{"finish_reason": "abort"}]}),
}


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("name", [*FAILURES, "refused"])
async def test_failed_try_is_made_again_elsewhere(lab: Lab, name: str, side: str) -> None:
    router = await four(lab, deadlines=brief(first_byte=0.4 if name == "timeout" else 30.0))
    failing, well = first_chosen(router, side)
    if name == "refused":
        await failing.stop()
    else:
        failing.behave = FAILURES[name]
    if side == "prefill":
        # Decode waits for the prefill that never comes, as a real one does; with the other it answers.
        for engine in router.engines:
            if engine.role == "decode":
                engine.behave = partner(well)
    code, body = await router.post(CHAT_PATH, CHAT)
    assert code == 200, body
    await router.until_idle()
    used = rooms(*(e for e in router.engines if e.role == "decode"))
    assert len(used) == len(set(used)) >= 1, "each try has a room of its own"
    assert {p["bootstrap_room"] for p in well.prompts} & set(used) or side == "decode"
    assert not {p["bootstrap_room"] for p in failing.prompts} & {p["bootstrap_room"] for p in well.prompts}
    assert len(well.prompts) == 1
    assert outcomes(router, "ok") == 1
    kind = name.split()[0]
    assert count(router, names.RETRIES, side, kind) == 1
    assert failures(router, failing, kind) == 1


def partner(well: StubEngine) -> Behaviour:
    """Decode, which has an answer once its room's prefill has been at work."""

    async def behave(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        while seen.body["bootstrap_room"] not in [p["bootstrap_room"] for p in well.prompts]:
            if engine.aborted.is_set():
                engine.aborted.clear()
                raise asyncio.CancelledError
            await asyncio.sleep(0.01)
        return await answer(engine, request, seen)

    return behave


async def test_engine_that_failed_alone_is_changed(lab: Lab) -> None:
    """Prefill did its part: the next try may well go to the same one."""
    router = await four(lab, policy="prefix-aware")
    failing, well = first_chosen(router, "decode")
    failing.behave = reset
    assert (await router.post(CHAT_PATH, CHAT))[0] == 200
    prefills = [len(e.seen) for e in router.engines if e.role == "prefill"]
    assert sorted(prefills) in ([0, 2], [0, 3]), "its cache is warm there"
    assert len(well.seen) == 1


async def test_client_sees_nothing_of_a_stream_that_failed_before_its_first_byte(lab: Lab) -> None:
    router = await four(lab)
    failing, well = first_chosen(router, "decode")
    failing.behave = streams([ERROR_EVENT, DONE])
    events = chat_events(["a", "b"])
    well.behave = streams(events)
    code, body = await router.post(CHAT_PATH, STREAMED)
    assert (code, body) == (200, b"".join(events))


async def test_tries_end(lab: Lab) -> None:
    engines = [await lab.engine(side) for side in ("prefill", "decode", "decode", "decode", "decode")]
    router = await lab.router(*engines, ready=False, retries=2, **NO_POLLS)
    await router.until(lambda: len(router.state.workers.pairs()) == 4)
    for engine in engines[1:]:
        engine.behave = status(500, "boom")
    code, body = await router.post(CHAT_PATH, CHAT)
    assert code == 502
    assert error_of(body)["code"] == "decode_status"
    tried = [len(e.seen) for e in engines[1:]]
    assert sorted(tried) == [0, 1, 1, 1], "nobody is tried twice"
    used = rooms(*engines[1:])
    assert len(set(used)) == len(used) == 3
    assert outcomes(router, "decode_failed") == 1


@pytest.mark.parametrize("why", ["retries=0", "no budget", "no other pair", "other contract", "draining"])
async def test_no_further_try(lab: Lab, why: str) -> None:
    wire = "wire-b" if why == "other contract" else "wire-a"
    engines = [await lab.engine("prefill"), await lab.engine("decode")]
    if why != "no other pair":
        engines.append(await lab.engine("decode", wire_hash=wire))
    router = await lab.router(*engines, retries=0 if why == "retries=0" else 2, **NO_POLLS)
    await router.until(lambda: all(w.reachable for w in router.state.workers.workers))
    if why == "no budget":
        while router.state.retries.spend():
            pass
    if why == "draining":
        router.board.directory.drain(engines[2].url)
    for engine in engines[1:]:
        engine.behave = status(500, "boom")
    code, _ = await router.post(CHAT_PATH, CHAT)
    assert code == 502
    assert sum(len(e.seen) for e in engines[1:]) == 1


async def test_tries_share_the_time_of_the_request(lab: Lab) -> None:
    router = await four(lab, deadlines=brief(total=0.5, first_byte=0.35))
    for engine in router.engines:
        engine.behave = hang
    began = time.monotonic()
    code, body = await router.post(CHAT_PATH, CHAT)
    assert time.monotonic() - began < router.within(0.9)
    assert code == 504
    assert error_of(body)["code"] == "total_timeout"
    assert sum(len(e.seen) for e in router.engines if e.role == "decode") == 2


async def test_first_try_is_over_before_the_next_begins(lab: Lab) -> None:
    """Its engines are told to abort, and its legs count nowhere any more."""
    router = await four(lab, worker_limit=1)
    failing, _ = first_chosen(router, "prefill")
    failing.behave = status(500, "boom", delay=0.1)
    decodes = [e for e in router.engines if e.role == "decode"]
    decodes[0].behave = decodes[1].behave = wait_for_ever
    task = asyncio.create_task(router.post(CHAT_PATH, CHAT))
    await router.until(lambda: sum(len(e.seen) for e in decodes) == 2)
    first = next(e for e in decodes if e.seen and e.seen[0].body["rid"] == failing.prompts[0]["rid"])
    await router.until(lambda: bool(first.aborts))
    assert first.aborts[0][0] == first.prompts[0]["rid"]
    assert sum(w.in_flight for w in router.state.workers.workers if w.side == "decode") == 1
    for engine in decodes:
        engine.aborted.set()
    await task


async def test_ids_of_tries(lab: Lab) -> None:
    """The engine's id is new for each try; the client's own comes back whatever happens."""
    router = await four(lab)
    failing, well = first_chosen(router, "decode")
    failing.behave = status(500)
    headers = {"x-request-id": "mine"}
    async with router.http.post(router.url + CHAT_PATH, json=CHAT, headers=headers) as response:
        assert response.headers["x-request-id"] == "mine"
    (first,), (second,) = failing.prompts, well.prompts
    assert len({"mine", first["rid"], second["rid"]}) == 3
    failing.behave = status(500)
    async with router.http.post(router.url + CHAT_PATH, json=CHAT) as response:
        given = response.headers["x-request-id"]
    assert given in [p["rid"] for e in router.engines for p in e.prompts]


# --- kept connections that an engine closes just as they are used ------------------------------------------


def once(behave: Behaviour) -> Behaviour:
    """`behave` the first time, then as a healthy engine."""
    done = False

    async def first(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        nonlocal done
        if not done:
            done = True
            return await behave(engine, request, seen)
        return await answer(engine, request, seen)

    return first


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_stale_connection_is_no_failure_of_the_engine(lab: Lab, side: str, retries: int) -> None:
    router = await lab.router(retries=retries, **NO_POLLS)
    assert (await router.post(CHAT_PATH, CHAT))[0] == 200
    await router.until_idle()
    failing = router.prefill if side == "prefill" else router.decode
    failing.behave = once(reset)
    if side == "prefill":
        router.decode.behave = once(wait_for_ever)
    code, _ = await router.post(CHAT_PATH, CHAT)
    assert code == 200
    await router.until_idle()
    used = rooms(failing)
    assert len(set(used)) == len(used) == 3
    assert failures(router, failing, "stale") == 1
    assert not any(sum(w.breaker._bad) for w in router.state.workers.workers)
    assert count(router, names.RETRIES, side, "stale") == 1


async def test_try_after_a_stale_connection_has_a_fresh_one(lab: Lab) -> None:
    """Not the next of the kept ones, which an engine that restarted has all forgotten."""
    router = await lab.router(retries=0, **NO_POLLS)
    await asyncio.gather(*(router.post(CHAT_PATH, CHAT) for _ in range(4)))
    await router.until_idle()
    known = set(router.decode.peers)
    assert len(known) > 1

    async def forgetful(engine: StubEngine, request: web.Request, seen: Seen) -> web.StreamResponse:
        assert request.transport is not None
        if request.transport.get_extra_info("peername") in known:
            return await reset(engine, request, seen)
        return await answer(engine, request, seen)

    router.decode.behave = forgetful
    assert (await router.post(CHAT_PATH, CHAT))[0] == 200
    assert failures(router, router.decode, "stale") == 1


async def test_fresh_connection_that_breaks_is_a_failure(lab: Lab) -> None:
    router = await lab.router(**NO_POLLS)
    assert (await router.post(CHAT_PATH, CHAT))[0] == 200
    await router.until_idle()
    router.decode.behave = reset
    code, body = await router.post(CHAT_PATH, CHAT)
    assert code == 502
    assert error_of(body)["code"] == "decode_broken"
    # Once on the kept connection, once on a new one.
    assert len(router.decode.seen) == 3
    assert failures(router, router.decode, "broken") == 1
