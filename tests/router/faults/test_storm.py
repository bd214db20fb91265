"""10,000 mixed faults at once on one router: nothing hangs, nothing leaks, and the memory stays flat."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest
import pytest_asyncio
from tests.router.faults.rows import Row, rows
from tests.router.harness.bench import Bench, bench, complete, deadlines, prompt_bytes
from tests.router.harness.client import Reply, Wire
from tests.router.harness.exposition import Scrape
from tests.router.mocks.answers import CHAT, GENERATE, PROMPT_ROUTES
from tests.router.mocks.plan import Plan

pytestmark = pytest.mark.asyncio(loop_scope="module")

WARM_UP, FAULTS = 1_000, 10_000
AT_ONCE = 64
ENGINES = 6
PROMPTS = 200
GROWTH = 5 << 20
# The shares of what a client may do; the rest are faults of engines.
LEAVES, MALFORMED = 0.15, 0.05
SLOW = 0.01  # share of engines' faults that only a deadline ends
# Long enough that no well engine is late on a busy machine, while 64 clients ask at once.
CONNECT, FIRST_BYTE, IDLE = 5.0, 4.0, 3.0
WELL = 0.25  # requests without any fault, beside the others


class Case(NamedTuple):
    """One request of the storm. `leaves`: after so many bytes of its answer (None: it stays)."""

    plan: Plan
    streamed: bool
    path: str
    text: str
    row: Row | None = None
    leaves: int | None = None
    malformed: bool = False


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def it() -> AsyncIterator[Bench]:
    """Engines enough that those whose breakers are open are not all of them.

    Each health check meets another process, whose breaker is closed: or most requests would find all breakers
    open, and meet no fault.
    """
    flags = (*deadlines(CONNECT, FIRST_BYTE, IDLE), "--poll-interval", "0.1")
    async with bench(prefill=ENGINES, decode=ENGINES, flags=flags, keep_raw=False) as made:
        for engine in made.engines:
            engine.always_reborn = True
        yield made


def _cases(seed: int) -> Iterator[Case]:
    """An endless mix, the same for the same seed."""
    dice = random.Random(seed)
    table = [r for r in rows() if not r.whole_engine and r.phase != "late"]
    slow, quick = [r for r in table if r.slow], [r for r in table if not r.slow]
    number = 0
    while True:
        number += 1
        path, streamed, tag = dice.choice(PROMPT_ROUTES), dice.random() < 0.5, f"{seed}-{number}"
        # Not a new prompt each: what a router keeps of prompts is full after the warm-up.
        text = f"prompt {number % PROMPTS}"
        if dice.random() < WELL:
            yield Case(Plan(tag), streamed, path, text)
            continue
        chance = dice.random()
        if chance < LEAVES:
            how = dice.choice(
                (Plan(tag, decode="wait"), Plan(tag, prefill="wait"), Plan(tag, events=10_000, pause=0.004))
            )
            yield Case(how, streamed or how.events > 3, path, text, leaves=dice.choice((0, 1, 500)))
        elif chance < LEAVES + MALFORMED:
            yield Case(Plan(tag), streamed, path, text, malformed=True)
        else:
            row = dice.choice(slow if dice.random() < SLOW else quick)
            plan = Plan(tag, times=int(row.once), **{row.side: row.fault})  # type: ignore[arg-type]
            yield Case(plan, row.streamed, path, text, row=row)


def _prompt(path: str, text: str) -> dict[str, object]:
    if path == CHAT:
        return {"messages": [{"role": "user", "content": text}]}
    return {"text" if path == GENERATE else "prompt": text}


class Storm:
    """Runs cases, so many at once, and notes what must not be."""

    def __init__(self, it: Bench) -> None:
        self._it = it
        self.wrong: list[str] = []
        self.statuses: Counter[int] = Counter()
        self._by_clients = 0

    @property
    def faults(self) -> int:
        """How many have happened: those that engines had, and those of clients."""
        return self._by_clients + self._it.book.acted.total()

    async def run(self, cases: Iterator[Case], *, faults: int) -> None:
        """Until so many more faults have happened."""
        enough = self.faults + faults

        async def client() -> None:
            wire: Wire | None = None
            while self.faults < enough:
                case = next(cases)
                if wire is None or wire.writer.is_closing():
                    wire = await Wire.open(self._it.router.port)
                if not await self._one(case, wire):
                    wire.close()
                    wire = None
                self._it.book.by_tag.pop(case.plan.tag, None)
            if wire is not None:
                wire.close()

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))

    async def _one(self, case: Case, wire: Wire) -> bool:
        """One case; whether its connection can carry another one."""
        fields = _prompt(case.path, case.text)
        data = prompt_bytes(case.plan, streamed=case.streamed, path=case.path, **fields)
        if case.malformed:
            data = data[:-1] + b"!"
        try:
            await wire.send(data)
            if case.leaves is not None:
                await self._leave(case, wire)
                self._by_clients += 1
                return False
            reply = await wire.reply()
        except TimeoutError:
            self.wrong.append(f"hung: {case}")
            return False
        except (ConnectionError, AssertionError) as error:
            self.wrong.append(f"{error!r}: {case}")
            return False
        self.statuses[reply.status] += 1
        self._by_clients += case.malformed
        if problem := self._judge(case, reply):
            self.wrong.append(f"{problem}: {case} {reply.status} {reply.body[-300:]!r}")
        return reply.headers.get("connection", "").lower() != "close" and not reply.cut

    async def _leave(self, case: Case, wire: Wire) -> None:
        if case.leaves and case.plan.events > 3:
            assert await asyncio.wait_for(wire.reader.read(case.leaves), 20), "closed without an answer"
        else:
            await asyncio.sleep(0.02)
        wire.reset() if case.leaves == 1 else wire.close()

    def _judge(self, case: Case, reply: Reply) -> str:
        limit = 3 * FIRST_BYTE + 1
        if reply.seconds > self._it.within(limit):
            return f"late, {reply.seconds:.1f} s"
        if reply.cut:
            return "cut off"
        if case.malformed:
            return "" if reply.status == 400 and reply.error else "not refused"
        if complete(reply, case.plan, streamed=case.streamed):
            return ""
        if case.row is None:
            # A well request may still find all breakers open.
            return "" if reply.status == 503 and reply.error else "failed without a fault"
        try:
            told = bool(reply.error)
        except (AssertionError, ValueError, KeyError):
            told = b'"error"' in reply.body or b'"abort"' in reply.body or case.row.refused
        return "" if told else "neither an answer nor an error"


async def test_ten_thousand_faults_leave_nothing(it: Bench) -> None:
    storm = Storm(it)
    cases = _cases(seed=4)
    await storm.run(cases, faults=WARM_UP)
    await it.idle()
    it.book.forget()
    assert not storm.wrong, "\n".join(storm.wrong[:10])
    memory, descriptors = it.router.rss(), it.router.descriptors()
    before, acted = await it.router.scrape(), it.book.acted.copy()
    began = time.monotonic()
    await storm.run(cases, faults=FAULTS)
    took = time.monotonic() - began
    await it.idle()
    grown = it.router.rss() - memory
    after = await it.router.scrape()
    figures = f"{took:.1f} s, {grown / 2**20:+.1f} MiB, answers by status {dict(storm.statuses)}"
    print(f"{storm.faults} faults: {figures}")
    assert not storm.wrong, f"{len(storm.wrong)}: " + "\n".join(storm.wrong[:10])
    assert not it.faults_of_the_suite()
    assert grown < GROWTH, f"{grown / 2**20:.1f} MiB more after {FAULTS} faults"
    _blame(it, before, after, acted)
    await it.nothing_left()
    # A kept connection or two to each engine is no leak (`nothing_left`).
    assert it.router.descriptors() <= descriptors + 2 * len(it.engines)


def _blame(it: Bench, before: Scrape, after: Scrape, acted: Counter[tuple[str, str]]) -> None:
    """Each broken or aborted leg is counted once, for the worker that had the fault, and none for another.

    Not compared: refusals (a router need not count them) and deadlines (on a busy machine a well engine, too,
    may be late).
    """
    kinds = {r.fault: r.kinds for r in rows()}
    for engine in it.engines:
        expected = sum(
            number - acted[url, fault]
            for (url, fault), number in it.book.acted.items()
            if url == engine.url and not kinds[fault] & {"status", "timeout", "refused"}
        )
        counted = sum(
            scrape.total("plait_router_leg_failures_total", worker=engine.url, kind=kind) * sign
            for scrape, sign in ((after, 1), (before, -1))
            for kind in ("broken", "stale", "aborted", "too_large")
        )
        assert counted == expected, f"{engine.name}: {counted:g} failures counted, it had {expected}"
