"""One try: whatever happens to one leg ends all others in the same turn, and the right side is to blame."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.router.conftest import brief
from tests.unit.router.fake_engine import DECODE, JSON, PREFILL, SSE, fake_worker

from plait.router.attempt import Attempt, Watch
from plait.router.breaker import BreakerState
from plait.router.leg import FailureKind, Leg, LegError
from plait.router.placement.policy import Why
from plait.router.registry import Lease
from plait.router.upstream.connection import Fault


class Try:
    """An attempt of `samples` pairs of legs, all started."""

    def __init__(self, samples: int = 1) -> None:
        self.loop = asyncio.get_running_loop()
        self.prefill, _ = fake_worker(PREFILL)
        self.decode, _ = fake_worker(DECODE)
        self.prefill.enter(samples, 1.5 * samples)
        self.decode.enter(samples)
        tickets = self.prefill.breaker.take(), self.decode.breaker.take()
        self.log: list[str] = []  # what the request was told, in order
        self.told: list[Leg] = []  # whose engine was told to abort
        self.judged: list[tuple[Leg, LegError]] = []
        self.finished: list[Leg] = []
        aborts: Any = self
        self.attempt = Attempt(
            Lease(self.prefill, self.decode, *tickets, Why.POLICY, 0, 0, samples, 1.5), self, aborts=aborts
        )
        deadlines = brief(first_byte=10.0, idle=5.0)
        for side, worker, work in (
            (self.attempt.prefills, self.prefill, 1.5),
            (self.attempt.decodes, self.decode, 0.0),
        ):
            for number in range(samples):
                leg = Leg(
                    worker,
                    (str(number),),
                    self.attempt,
                    deadlines,
                    1000,
                    self.loop.time,
                    relay=worker is self.decode,
                    work=work,
                )
                side.append(leg)
                leg.start([b""])

    def send(self, leg: Leg) -> None:
        """In the place of `Aborts`."""
        self.told.append(leg)

    # In the place of the request (attempt.AttemptOwner).

    def attempt_moved(self) -> None:
        self.log.append("moved")

    def attempt_failed(self) -> None:
        self.ended()
        self.log.append("failed")

    def attempt_over(self, attempt: Attempt) -> None:
        self.ended()
        self.log.append("over")

    def leg_judged(self, leg: Leg, error: LegError) -> None:
        self.judged.append((leg, error))

    def leg_done(self, leg: Leg) -> None:
        self.finished.append(leg)

    @property
    def p(self) -> Leg:
        return self.attempt.prefills[0]

    @property
    def d(self) -> Leg:
        return self.attempt.decodes[0]

    @property
    def blamed(self) -> tuple[int, int]:
        """Failures that the breakers of prefill and decode have counted."""
        return sum(self.prefill.breaker._bad), sum(self.decode.breaker._bad)

    @property
    def praised(self) -> tuple[int, int]:
        return sum(self.prefill.breaker._good), sum(self.decode.breaker._good)

    def ended(self) -> None:
        """Nothing is open or counted."""
        assert self.attempt.over
        assert (self.prefill.in_flight, self.decode.in_flight) == (0, 0)
        assert (self.prefill.load, self.decode.load) == (0, 0)


def began(leg: Leg, body: bytes, status: int = 200) -> None:
    leg.on_head(status, JSON)
    leg.on_data(body)


def answered(leg: Leg, status: int = 200) -> None:
    began(leg, b"{}", status)
    leg.on_end()


async def test_well_answered_by_both() -> None:
    it = Try()
    answered(it.p)
    assert it.log == ["moved"]
    assert not it.attempt.over
    answered(it.d)
    assert it.finished == [it.p, it.d]
    it.attempt.linger(5.0, now=it.loop.time())
    it.ended()
    assert (it.told, it.judged, it.attempt.failure) == ([], [], None)
    assert (it.blamed, it.praised) == ((0, 0), (1, 1))


FAILURES: dict[str, tuple[Callable[[Leg], None], FailureKind, bool, bool]] = {
    # name: what happens, its kind, whether its engine is told, whether it is to blame
    "refused": (lambda leg: leg.on_failed(Fault.REFUSED, "x"), FailureKind.REFUSED, False, True),
    "broken": (lambda leg: leg.on_failed(Fault.BROKEN, "x"), FailureKind.BROKEN, True, True),
    "stale": (lambda leg: leg.on_failed(Fault.STALE, "x"), FailureKind.STALE, True, False),
    "500": (lambda leg: answered(leg, 500), FailureKind.STATUS, False, True),
    "503": (lambda leg: answered(leg, 503), FailureKind.STATUS, False, False),
    "400": (lambda leg: answered(leg, 400), FailureKind.STATUS, False, False),
    "late": (lambda leg: leg.expire(), FailureKind.TIMEOUT, True, True),
    "too large": (lambda leg: began(leg, b"x" * 2000), FailureKind.TOO_LARGE, True, False),
}


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("name", FAILURES)
async def test_leg_that_fails_ends_the_other_in_the_same_turn(name: str, side: str) -> None:
    happens, kind, told, blamed = FAILURES[name]
    it = Try()
    guilty, other = (it.p, it.d) if side == "prefill" else (it.d, it.p)
    if side == "decode":
        # Else prefill would be to blame for decode's being late.
        answered(it.p)
    happens(guilty)
    assert it.log[-1] == "failed"
    assert it.log.count("failed") == 1
    assert it.attempt.guilty is guilty
    assert it.attempt.failure is guilty.failure
    assert it.attempt.failure is not None
    assert (it.attempt.failure.side, it.attempt.failure.kind) == (side, kind)
    assert it.judged == [(guilty, guilty.failure)]
    assert it.told == ([guilty] if told else []) + ([other] if side == "prefill" else [])
    assert it.blamed == ((int(blamed), 0) if side == "prefill" else (0, int(blamed)))
    # A leg that ended for the other's sake says nothing about its worker; one that has answered does.
    assert it.praised[0 if side == "decode" else 1] == (1 if side == "decode" else 0)


async def test_only_the_first_failure_counts() -> None:
    it = Try()
    answered(it.p, 400)
    failure = it.attempt.failure
    it.d.failure = LegError(it.d.side, FailureKind.BROKEN, "late")
    it.attempt.leg_failed(it.d)
    assert it.attempt.failure is failure
    assert len(it.judged) == 1
    assert it.blamed == (0, 0)


async def test_prefill_is_to_blame_where_decode_is_late_for_want_of_it() -> None:
    it = Try()
    it.d.expire()
    it.ended()
    assert it.attempt.guilty is it.p
    assert it.attempt.failure is not None
    assert (it.attempt.failure.side, it.attempt.failure.kind) == ("prefill", FailureKind.TIMEOUT)
    assert [leg for leg, _ in it.judged] == [it.p]
    assert set(it.told) == {it.p, it.d}
    assert it.blamed == (1, 0)


@pytest.mark.parametrize("how", ["prefill answered", "decode began"])
async def test_decode_is_to_blame_where_prefill_did_its_part(how: str) -> None:
    it = Try()
    if how == "prefill answered":
        answered(it.p)
    else:
        it.d.on_head(200, SSE)
    it.d.expire()
    assert it.attempt.guilty is it.d
    assert it.blamed == (0, 1)


async def test_prefill_goes_first_where_both_are_late() -> None:
    it = Try()
    it.p.due = it.d.due = 5.0
    it.attempt.check(4.9)
    assert it.attempt.failure is None
    it.attempt.check(5.0)
    assert it.attempt.guilty is it.p
    assert len(it.judged) == 1
    it.ended()


async def test_closed_attempt_tells_all_engines_and_blames_nobody() -> None:
    it = Try(samples=2)
    answered(it.attempt.prefills[0])
    it.attempt.close()
    it.ended()
    assert it.told == [it.attempt.prefills[1], *it.attempt.decodes]
    assert it.log == ["moved"], "whoever closes it knows"
    assert (it.blamed, it.judged) == ((0, 0), [])
    it.attempt.close()
    assert len(it.told) == 3


async def test_attempt_that_is_closed_gives_a_probe_back() -> None:
    it = Try()
    for _ in range(3):
        it.decode.breaker.failed(it.decode.breaker.take())
    it.decode.breaker.checked(healthy=False)
    it.decode.breaker.checked(healthy=True)
    it.attempt.lease = it.attempt.lease._replace(decode_ticket=it.decode.breaker.take())
    assert not it.decode.breaker.allow()
    it.attempt.close()
    assert it.decode.breaker.allow()
    assert it.decode.breaker.state is BreakerState.HALF_OPEN


async def test_one_sample_that_fails_ends_all() -> None:
    it = Try(samples=3)
    it.attempt.decodes[1].on_failed(Fault.BROKEN, "x")
    it.ended()
    assert it.attempt.guilty is it.attempt.decodes[1]
    assert len(it.told) == 6
    assert it.blamed == (0, 1), "one request, one judgement"


async def test_sample_that_waits_for_its_prefill_blames_that_one() -> None:
    it = Try(samples=2)
    answered(it.attempt.prefills[0])
    it.attempt.decodes[1].expire()
    assert it.attempt.guilty is it.attempt.prefills[1]


# --- decode has finished, prefill has not ------------------------------------------------------------------


async def lingering() -> Try:
    it = Try()
    answered(it.d)
    it.attempt.linger(5.0, now=it.loop.time())
    it.log.clear()
    return it


async def test_prefill_that_lingers_and_ends_well() -> None:
    it = await lingering()
    assert it.praised == (0, 1)
    assert it.p.due <= it.loop.time() + 5.0
    answered(it.p)
    it.ended()
    assert (it.told, it.judged, it.praised) == ([], [], (1, 1))
    assert it.log == ["over"]


async def test_prefill_that_lingers_too_long_is_aborted_and_to_blame() -> None:
    it = await lingering()
    it.attempt.check(it.p.due + 0.1)
    it.ended()
    assert it.told == [it.p]
    [(leg, error)] = it.judged
    assert leg is it.p
    assert "due after decode's" in str(error)
    assert it.blamed == (1, 0)
    assert it.praised == (0, 1)
    assert it.log == ["over"]


async def test_lingering_ends_no_later_than_the_leg_itself() -> None:
    it = Try()
    answered(it.d)
    it.p.due = 7.0
    it.attempt.linger(1000.0, now=it.loop.time())
    assert it.p.due == 7.0


async def test_all_that_linger_too_long_are_ended_at_once() -> None:
    it = Try(samples=3)
    for leg in it.attempt.decodes:
        answered(leg)
    it.attempt.linger(5.0, now=0.0)
    it.attempt.check(6.0)
    it.ended()
    assert it.told == it.attempt.prefills
    assert it.blamed == (1, 0)
    assert it.log[-1:] == ["over"]


# --- Watch -------------------------------------------------------------------------------------------------


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_watch_keeps_deadlines_and_lets_go_of_what_is_over() -> None:
    watch, late, calm = Watch(), Try(), Try()
    for it in (late, calm):
        watch.add(it.attempt)
    late.p.due = late.loop.time()
    await until(lambda: len(watch) == 1)
    assert late.attempt.failure is not None
    assert calm.attempt.failure is None
    answered(calm.p)
    answered(calm.d)
    await until(lambda: len(watch) == 0)
    # Nothing ticks while nothing is watched; a new one starts it again.
    assert watch._timer is None
    again = Try()
    again.d.due = again.p.due = 0.0
    watch.add(again.attempt)
    await until(lambda: again.attempt.failure is not None)
    watch.close()


async def test_watch_that_stood_still_lets_what_came_meanwhile_be_read_first() -> None:
    watch, it = Watch(), Try()
    watch.add(it.attempt)
    it.p.due = it.loop.time() + Watch.TICK / 2
    time.sleep(5 * Watch.TICK)
    await asyncio.sleep(Watch.TICK / 2)
    assert it.attempt.failure is None
    # Once: a loop that is late again and again still keeps its deadlines.
    time.sleep(5 * Watch.TICK)
    await until(lambda: it.attempt.failure is not None)
    watch.close()


async def test_one_broken_attempt_does_not_stop_the_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch, broken, late = Watch(), Try(), Try()
    monkeypatch.setattr(broken.attempt, "check", lambda now: 1 / 0)
    watch.add(broken.attempt)
    watch.add(late.attempt)
    late.p.due = 0.0
    await until(lambda: late.attempt.failure is not None)
    assert "could not be kept" in caplog.text
    watch.close()


async def test_watch_that_closes_ends_what_lingers() -> None:
    watch, it = Watch(), await lingering()
    watch.add(it.attempt)
    watch.close()
    it.ended()
    assert it.told == [it.p]
    assert len(watch) == 0


async def test_dropped_attempt_is_watched_no_more() -> None:
    watch, it = Watch(), Try()
    watch.add(it.attempt)
    watch.drop(it.attempt)
    assert len(watch) == 0
    watch.close()
    assert not it.attempt.over
