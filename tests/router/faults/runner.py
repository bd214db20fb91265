"""Runs rows of the fault table on several benches at once, and says for each what did not hold."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import orjson
from tests.router.faults.rows import Row
from tests.router.harness.bench import FIRST_BYTE, Bench, bench, complete
from tests.router.harness.client import Reply
from tests.router.harness.exposition import Scrape
from tests.router.mocks.answers import MESSAGES
from tests.router.mocks.book import ANSWERED, CLOSED, Leg
from tests.router.mocks.plan import Plan

# From a fault to the other engine's abort message, and to the end of its leg.
ABORT_WITHIN = 0.2
# A fault that shows at once is answered within this, its retries included.
QUICK = 1.5
BIG = 12 << 20  # bytes that no pair of socket buffers holds


class Problems:
    """What several checks found: one that fails does not hide the others."""

    def __init__(self) -> None:
        self._found: list[str] = []

    @contextlib.contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Note the block's AssertionError as a problem of `what`."""
        try:
            yield
        except AssertionError as error:
            self._found.append(f"{what}: {error}")

    def raise_all(self) -> None:
        """Raise AssertionError with all that was noted, if anything was."""
        assert not self._found, "\n".join(self._found)


class Outcomes(NamedTuple):
    """By row what did not hold, empty where all did. `after`: what was wrong with the benches at rest."""

    rows: dict[Row, str]
    after: list[str]


async def run_rows(todo: Sequence[Row], *, benches: int) -> Outcomes:
    """Run all rows, on so many benches."""
    outcomes = Outcomes({}, [])
    # Long rows first, so that the benches end together.
    waiting = sorted(todo, key=lambda row: not row.slow)

    async def work() -> None:
        async with bench() as it:
            for engine in it.engines:
                engine.keep_small = False
            while waiting:
                row = waiting.pop(0)
                try:
                    await run_row(it, row)
                    outcomes.rows[row] = ""
                except AssertionError as error:
                    outcomes.rows[row] = f"{error}\n{it.router.tail()[-1500:]}"
                except Exception:
                    outcomes.rows[row] = f"{traceback.format_exc(limit=-3)}\n{it.router.tail()[-1500:]}"
            await it.nothing_left()

    ended = await asyncio.gather(*(work() for _ in range(benches)), return_exceptions=True)
    outcomes.after.extend("".join(traceback.format_exception(e)) for e in ended if e is not None)
    return outcomes


async def run_row(it: Bench, row: Row) -> None:
    """One row, from a bench at rest to a bench at rest. AssertionError says what did not hold."""
    long = {"events": 100, "pause": 0.02} if row.started and row.side == "prefill" else {}
    plan = Plan(row.name, times=int(row.once), **{row.side: row.fault}, **long)  # type: ignore[arg-type]
    if row.whole_engine:
        plan = Plan(row.name)
    padding = {"padding": "x" * BIG} if row.fault == "never-read" else {}
    try:
        for _ in range(3):
            await it.recovered()
            for engine in it.engines:
                # A reset on a kept connection may be its keep-alive's end; the table is of other faults.
                await engine.drop_idle()
            it.book.foreign_aborts.clear()
            before = await it.router.scrape()
            async with _engines(it, row):
                reply = await it.prompt(plan, streamed=row.streamed, path=row.path, **padding)
            if not row.whole_engine or reply.status != 503:
                break
            # A health check came first, so that the request met no fault: again.
        await it.idle()
        legs = it.book.by_tag[row.name]
        after = await it.router.scrape()
        problems = Problems()
        with problems.of("answer"):
            _check_answer(it, row, plan, reply)
        with problems.of("attempts"):
            _check_attempts(row, legs)
        with problems.of("aborts"):
            _check_aborts(it, row, reply, legs)
        with problems.of("blame"):
            _check_blame(it, row, legs, before, after)
        problems.raise_all()
    finally:
        it.book.pardon()
        it.book.forget()


@contextlib.asynccontextmanager
async def _engines(it: Bench, row: Row):  # type: ignore[no-untyped-def]
    """The faults that are not of one request, for as long as the block runs."""
    guilty = it.side(row.side)
    if row.fault == "never-read":
        for engine in guilty:
            engine.never_read = True
    elif row.fault == "refuse":
        for engine in guilty:
            await engine.stop()
    elif row.fault == "clog":
        for engine in guilty:
            await engine.clog()
    try:
        yield
    finally:
        for engine in guilty:
            if row.fault in ("refuse", "clog"):
                await engine.stop()
                await engine.start()
            engine.never_read = False
            if row.fault == "never-read":
                for connection in list(engine.connections):
                    connection.reset()


def _check_answer(it: Bench, row: Row, plan: Plan, reply: Reply) -> None:
    limit = 3 * FIRST_BYTE + 1 if row.slow else QUICK
    if row.started and row.side == "prefill":
        limit += 0.2
    assert reply.seconds < it.within(limit), f"answered after {reply.seconds:.2f} s"
    if row.once and (row.retried or (row.retried is None and reply.status == 200)):
        assert complete(reply, plan, streamed=row.streamed), (reply.status, reply.body[-500:])
        return
    assert reply.status in row.statuses, (reply.status, reply.body[-500:])
    assert not reply.cut
    if row.refused:
        _check_refusal(row, reply)
    elif row.started:
        _check_broken_stream(row, reply)
    else:
        assert reply.headers["content-type"].startswith("application/json")
        error = reply.error
        assert reply.status == 503 or str(error["code"]).startswith(row.side) or not row.blames_one_side, (
            error
        )
        if row.status in MESSAGES:
            assert MESSAGES[row.status] in error["message"]


def _check_refusal(row: Row, reply: Reply) -> None:
    """What the engine says to the client goes to the client."""
    payload = orjson.loads(reply.body)
    inner = payload.get("error", payload)
    assert inner["message"] == MESSAGES[row.status], inner
    assert "param" in inner
    assert inner["type"], inner


def _check_broken_stream(row: Row, reply: Reply) -> None:
    assert b'"content"' in reply.body or b'"text"' in reply.body, "the part before the fault is missing"
    if row.fault == "error-mid":
        # The engine's own error event has been passed on as it is.
        assert b'data: {"error":' in reply.body
    elif row.fault == "aborted-mid":
        assert b'"abort"' in reply.body
    else:
        assert b"[DONE]" not in reply.body
        error = reply.error
        assert str(error["code"]).startswith(row.side), error


def _attempts(row: Row, legs: Iterable[Leg]) -> list[Leg]:
    return [leg for leg in legs if leg.engine.role == row.side]


def _check_attempts(row: Row, legs: Sequence[Leg]) -> None:
    """How often, with what rooms, and where it was tried."""
    for side in ("prefill", "decode"):
        rooms = [room for leg in legs if leg.engine.role == side for room in leg.rooms]
        assert len(set(rooms)) == len(rooms), f"rooms used again: {rooms}"
        assert 0 not in rooms
    tries = _attempts(row, legs)
    if row.whole_engine:
        assert not tries
        return
    assert tries, "the request never came"
    if row.retried is False:
        assert len(tries) == 1, f"tried {len(tries)} times"
    elif row.retried:
        assert len(tries) >= 2, "not retried"
        assert tries[1].engine is not tries[0].engine, "retried on the engine that had failed"
        if row.once:
            assert len(tries) == 2, f"tried {len(tries)} times"
            assert tries[1].ended == ANSWERED


def _check_aborts(it: Bench, row: Row, reply: Reply, legs: Sequence[Leg]) -> None:
    """The leg that did not fail is closed, and its engine told to abort it, at once."""
    faulty = {leg.rooms[0]: leg for leg in _attempts(row, legs) if leg.fault}
    for leg in legs:
        if leg.engine.role != row.other or (leg.rooms[0] not in faulty and not row.whole_engine):
            continue
        cause = faulty.get(leg.rooms[0])
        since = cause.fault_at if cause is not None and cause.fault_at is not None else reply.ended_at
        if leg.ended == ANSWERED:
            assert leg.ended_at is not None
            continue
        assert leg.ended == CLOSED, f"{leg.engine.name}: {leg.ended}"
        assert leg.aborted_at is not None, f"{leg.engine.name} was not told to abort {leg.rid}"
        assert leg.ended_at is not None
        late = leg.ended_at - since
        assert late < it.within(ABORT_WITHIN), f"{leg.engine.name}: leg closed after {late:.3f} s"
        late = leg.aborted_at - since
        assert late < it.within(ABORT_WITHIN), f"{leg.engine.name}: told to abort after {late:.3f} s"
    # Each engine is told its own ids only; one that has read nothing cannot know them.
    assert row.whole_engine or not it.book.foreign_aborts, it.book.foreign_aborts


def _check_blame(it: Bench, row: Row, legs: Sequence[Leg], before: Scrape, after: Scrape) -> None:
    """Each fault is counted once, for the worker that had it, as what it was; nothing for the other side."""
    counted: dict[str, float] = {}
    for series in after.select("plait_router_leg_failures_total"):
        more = series.value - before.total(series.name, **series.labels)
        if more:
            counted[series.labels["worker"]] = counted.get(series.labels["worker"], 0) + more
            if row.blames_one_side:
                assert series.labels["side"] == row.side, f"blamed {dict(series.labels)}"
            assert series.labels["kind"] in row.kinds, dict(series.labels)
    if row.whole_engine:
        assert counted, "nobody was blamed"
        return
    expected: dict[str, float] = {}
    for leg in _attempts(row, legs):
        if leg.fault:
            expected[leg.engine.url] = expected.get(leg.engine.url, 0) + 1
    # A refusal is not the engine's fault: a router may leave it out.
    assert counted == expected or (row.refused and not counted), f"blamed {counted}, faults {expected}"
