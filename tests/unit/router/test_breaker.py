"""Circuit breaker: when it opens, that one probe decides, and that no probe is lost for good."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plait.router.breaker import Breaker, BreakerRules, BreakerState

RULES = BreakerRules(jitter=0)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(RULES, clock=clock)


def fail(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        assert breaker.allow()
        breaker.failed(breaker.take())


def succeed(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        assert breaker.allow()
        breaker.succeeded(breaker.take())


# --- opening -----------------------------------------------------------------------------------------------


def test_opens_after_failures_in_a_row(breaker: Breaker) -> None:
    fail(breaker, 2)
    succeed(breaker)
    fail(breaker, 2)
    assert breaker.state is BreakerState.CLOSED
    fail(breaker)
    assert (breaker.state, breaker.closed, breaker.allow()) == (BreakerState.OPEN, False, False)
    assert breaker.opened == 1


def mixed(breaker: Breaker, clock: Clock, pattern: str, *, every: float) -> None:
    for letter in pattern:
        (succeed if letter == "+" else fail)(breaker)
        clock.now += every


def test_opens_when_half_of_ten_failed(breaker: Breaker, clock: Clock) -> None:
    mixed(breaker, clock, "+-+-+-+-+", every=0.1)
    assert breaker.closed
    fail(breaker)
    assert breaker.state is BreakerState.OPEN


def test_fewer_than_half_do_not_open_it(breaker: Breaker, clock: Clock) -> None:
    mixed(breaker, clock, "++--+" * 30, every=0.1)
    assert breaker.closed


def test_fewer_than_ten_in_the_window_do_not_open_it(breaker: Breaker, clock: Clock) -> None:
    mixed(breaker, clock, "+-" * 60, every=1.2)
    assert breaker.closed


def test_what_is_older_than_the_window_does_not_count(breaker: Breaker, clock: Clock) -> None:
    mixed(breaker, clock, "+-" * 4, every=0.1)
    clock.now += 10
    mixed(breaker, clock, "+-" * 4, every=0.1)
    assert breaker.closed
    mixed(breaker, clock, "+", every=0.1)
    fail(breaker)
    assert not breaker.closed


# --- half-open ---------------------------------------------------------------------------------------------


def opened(breaker: Breaker) -> None:
    fail(breaker, 3)
    assert breaker.state is BreakerState.OPEN


def test_one_probe_after_the_wait(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    clock.now += 4.9
    assert not breaker.allow()
    assert breaker.retry_in == pytest.approx(0.1)
    clock.now += 0.2
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.retry_in == 0
    ticket = breaker.take()
    assert not breaker.allow()
    breaker.succeeded(ticket)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.allow()


def test_a_failed_probe_doubles_the_wait_up_to_the_longest(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    for wait in (5, 10, 20, 40, 60, 60):
        assert breaker.retry_in == pytest.approx(wait)
        clock.now += wait + 0.01
        fail(breaker)
    assert breaker.opened == 7


def test_a_success_resets_the_wait(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    clock.now += 5.1
    fail(breaker)
    clock.now += 10.1
    succeed(breaker)
    opened(breaker)
    assert breaker.retry_in == pytest.approx(5)


def test_what_was_before_does_not_count_once_it_has_closed(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    clock.now += 5.1
    succeed(breaker)
    fail(breaker, 2)
    assert breaker.closed


def test_a_probe_whose_client_left_frees_its_place(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    clock.now += 5.1
    breaker.abandoned(breaker.take())
    assert breaker.state is BreakerState.HALF_OPEN
    succeed(breaker)
    assert breaker.closed


def test_requests_from_before_say_nothing(breaker: Breaker, clock: Clock) -> None:
    early = [breaker.take() for _ in range(4)]
    opened(breaker)
    breaker.succeeded(early[0])
    breaker.failed(early[1])
    assert breaker.state is BreakerState.OPEN
    assert breaker.retry_in == pytest.approx(5)
    clock.now += 5.1
    probe = breaker.take()
    for ticket in early:
        breaker.succeeded(ticket)
        breaker.abandoned(ticket)
    assert not breaker.allow()  # the probe's place is still taken
    assert not breaker.closed
    breaker.succeeded(probe)
    assert breaker.closed
    for _ in range(5):
        breaker.failed(early[2])
        breaker.failed(probe)
    assert breaker.closed


# --- health checks and restarts ----------------------------------------------------------------------------


def test_a_recovered_worker_is_probed_at_once(breaker: Breaker) -> None:
    opened(breaker)
    breaker.checked(healthy=False)
    assert not breaker.allow()
    breaker.checked(healthy=True)
    assert breaker.state is BreakerState.HALF_OPEN
    fail(breaker)  # only health is not enough
    assert breaker.state is BreakerState.OPEN


def test_a_worker_that_was_healthy_all_along_waits(breaker: Breaker) -> None:
    opened(breaker)
    for _ in range(20):
        breaker.checked(healthy=True)
    assert breaker.state is BreakerState.OPEN


def test_a_bad_check_from_before_it_opened_counts(breaker: Breaker) -> None:
    breaker.checked(healthy=False)
    opened(breaker)
    breaker.checked(healthy=True)
    assert breaker.allow()


def test_health_checks_neither_open_nor_close(breaker: Breaker, clock: Clock) -> None:
    for healthy in (False, True) * 20:
        breaker.checked(healthy=healthy)
    assert breaker.closed
    opened(breaker)
    clock.now += 5.1
    breaker.checked(healthy=True)
    assert breaker.state is BreakerState.HALF_OPEN


def test_a_restarted_worker_begins_anew(breaker: Breaker) -> None:
    ticket = breaker.take()
    opened(breaker)
    breaker.reset()
    assert (breaker.state, breaker.allow()) == (BreakerState.CLOSED, True)
    for _ in range(3):
        breaker.failed(ticket)  # of its predecessor
    fail(breaker, 2)
    assert breaker.closed


# --- rules -------------------------------------------------------------------------------------------------


def test_jitter_spreads_the_waits(clock: Clock) -> None:
    waits = []
    for seed in range(50):
        breaker = Breaker(BreakerRules(jitter=0.1), clock=clock, rng=random.Random(seed))
        opened(breaker)
        waits.append(breaker.retry_in)
    assert 4.5 <= min(waits) < 4.7
    assert 5.3 < max(waits) <= 5.5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("failures", 0),
        ("at_least", 0),
        ("ratio", 0),
        ("ratio", 1.1),
        ("window", 0),
        ("wait", 0),
        ("wait", 61),
        ("jitter", 1),
    ],
)
def test_rules_that_cannot_work_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{field} = {value}.*give "):
        BreakerRules(**{field: value})  # type: ignore[arg-type]


class Anything(RuleBasedStateMachine):
    """Whatever happens in whatever order: at most one probe, and never shut for good."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(RULES, clock=self.clock)
        self.under_way: list[int] = []
        self.probes: list[int] = []

    @rule()
    def begin(self) -> None:
        if self.breaker.allow():
            closed = self.breaker.closed
            (self.under_way if closed else self.probes).append(self.breaker.take())

    @rule(data=st.data(), how=st.sampled_from(["succeeded", "failed", "abandoned"]))
    def end(self, data: st.DataObject, how: str) -> None:
        if tickets := [*self.under_way, *self.probes]:
            ticket = data.draw(st.sampled_from(tickets))
            (self.probes if ticket in self.probes else self.under_way).remove(ticket)
            getattr(self.breaker, how)(ticket)

    @rule(seconds=st.floats(0, 30))
    def later(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(healthy=st.booleans())
    def checked(self, healthy: bool) -> None:
        self.breaker.checked(healthy=healthy)

    @rule()
    def restarted(self) -> None:
        self.breaker.reset()
        self.probes.clear()

    @invariant()
    def one_probe(self) -> None:
        if not self.breaker.closed:
            assert len(self.probes) <= 1

    @invariant()
    def never_shut_for_good(self) -> None:
        if not self.probes:
            now, self.clock.now = self.clock.now, self.clock.now + 61
            assert self.breaker.allow()
            self.clock.now = now


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
