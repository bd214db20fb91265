"""The waiting line: order, fairness, bounds, deadlines, and that nothing given is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from plait.router.queue import Line, Place, QueueFullError, QueueTimeoutError

KB = 1024


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """Something with so many places, which waiting requests take; notes who was asked and served."""

    def __init__(self, line: Line[str], free: int = 0) -> None:
        self.line = line
        self.free = free
        self.asked: list[str] = []
        self.served: list[str] = []

    def taker(self, name: str) -> Callable[[], str | None]:
        def take() -> str | None:
            self.asked.append(name)
            if not self.free:
                return None
            self.free -= 1
            self.served.append(name)
            return name

        return take

    def release(self, count: int = 1) -> None:
        for _ in range(count):
            self.free += 1
            self.line.kick()

    def give_back(self, name: str) -> None:
        self.served.remove(name)
        self.release()

    def join(self, name: str, *, size: int = KB, **more: Any) -> Place[str]:
        return self.line.join(self.taker(name), size=size, deadline=self.line._clock() + 1_000, **more)

    def wait(self, name: str, *, seconds: float = 1_000, size: int = KB, **more: Any) -> asyncio.Task[str]:
        return asyncio.create_task(
            self.line.wait(
                self.taker(name), self.give_back, size=size, deadline=self.line._clock() + seconds, **more
            )
        )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def desk(clock: Clock) -> Desk:
    return Desk(Line(clock=clock, max_waiting=8, max_bytes=10 << 20, bytes_per_second=1 << 20, handicap=2))


async def ticks(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- order -------------------------------------------------------------------------------------------------


async def test_what_is_free_is_given_at_once(desk: Desk) -> None:
    desk.free = 1
    assert await desk.wait("a") == "a"
    assert (desk.asked, desk.line.waiting) == (["a"], 0)


async def test_first_come_first_served(desk: Desk) -> None:
    for name in "abc":
        desk.join(name)
    desk.release(2)
    assert desk.served == ["a", "b"]
    assert desk.line.waiting == 1


async def test_higher_priority_first(desk: Desk) -> None:
    for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 5)):
        desk.join(name, priority=priority)
    desk.release(4)
    assert desk.served == ["b", "d", "a", "c"]


async def test_short_ones_overtake_long_ones_a_little(desk: Desk, clock: Clock) -> None:
    desk.join("long", size=1 << 20)  # stands for a second
    clock.now += 0.9
    desk.join("soon", size=0)
    clock.now += 0.2
    desk.join("late", size=0)
    desk.release(3)
    assert desk.served == ["soon", "long", "late"]


async def test_the_longest_are_overtaken_for_a_bounded_time_only(desk: Desk, clock: Clock) -> None:
    desk.join("huge", size=9 << 20)  # would stand for nine seconds
    clock.now += 2.1
    desk.join("late", size=0)
    desk.release(2)
    assert desk.served == ["huge", "late"]


async def test_a_long_one_is_never_starved(clock: Clock) -> None:
    # Twice as many short ones come as can be served, for ever: the line holds as many as it may.
    desk = Desk(Line(clock=clock, max_waiting=40, handicap=2))
    long = desk.join("long", size=32 << 20)
    number, waited = 0, 0.0
    while not long.future.done():
        for _ in range(2):
            number += 1
            try:
                desk.join(f"short-{number}")
            except QueueFullError:
                continue
        desk.release()
        clock.now += 0.1
        waited += 0.1
        assert waited < 10
    # It was overtaken by those of its first two seconds only: 40 of them, ten served in a second.
    assert 1.9 < waited <= 4.2


# --- nobody barges -----------------------------------------------------------------------------------------


async def test_a_newcomer_goes_behind_those_that_wait(desk: Desk) -> None:
    desk.join("a")
    desk.free = 1  # come free without a kick
    newcomer = desk.join("b")
    assert desk.served == ["a"]
    assert not newcomer.future.done()


async def test_a_newcomer_of_higher_priority_is_asked_first(desk: Desk) -> None:
    desk.join("a")
    desk.free = 1
    assert desk.join("b", priority=1).future.done()
    assert desk.served == ["b"]


async def test_a_newcomer_passes_those_that_cannot_use_what_is_free(desk: Desk) -> None:
    stuck = desk.line.join(lambda: None, size=1, deadline=2_000, kind="other")
    desk.free = 1
    assert await desk.wait("a") == "a"
    assert not stuck.future.done()


async def test_only_the_first_of_a_kind_is_asked(desk: Desk) -> None:
    for name, kind in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"), ("e", "x")):
        desk.join(name, kind=kind)
    desk.asked.clear()
    desk.line.kick()
    assert desk.asked == ["a", "c"]
    desk.asked.clear()
    desk.release(1)
    assert desk.asked == ["a", "b", "c"]


async def test_order_holds_between_kinds(desk: Desk) -> None:
    for name, kind, priority in (("a", "x", 0), ("b", "y", 2), ("c", "x", 1), ("d", "y", 0)):
        desk.join(name, kind=kind, priority=priority)
    desk.release(4)
    assert desk.served == ["b", "c", "a", "d"]


async def test_a_kick_of_an_empty_line_does_nothing(desk: Desk) -> None:
    desk.release()
    assert (desk.free, desk.asked) == (1, [])


# --- bounds ------------------------------------------------------------------------------------------------


async def test_no_more_than_so_many_wait(desk: Desk) -> None:
    for number in range(8):
        desk.join(str(number))
    with pytest.raises(QueueFullError, match=r"8 requests \(0 MiB\) wait already: try again in 30 s") as full:
        await desk.wait("x")
    assert (full.value.status, full.value.code, full.value.retry_after) == (429, "queue_full", 30)
    assert desk.line.waiting == 8
    desk.release()
    desk.join("y")
    assert desk.served == ["0"]


async def test_no_more_than_so_many_bytes_are_held(desk: Desk) -> None:
    desk.join("a", size=6 << 20)
    with pytest.raises(QueueFullError, match=r"1 requests \(6 MiB\)"):
        desk.join("b", size=5 << 20)
    desk.join("c", size=4 << 20)
    assert desk.line.held_bytes == 10 << 20
    desk.release(2)
    assert desk.line.held_bytes == 0


async def test_a_body_beyond_all_bounds_is_served_only_at_once(desk: Desk) -> None:
    desk.join("a")
    with pytest.raises(QueueFullError):
        desk.join("b", size=11 << 20, priority=9)
    assert desk.line.waiting == 1  # and nobody was sent away for it
    desk.release(2)
    assert await desk.wait("c", size=11 << 20) == "c"


async def test_higher_priority_takes_the_place_of_the_last(desk: Desk) -> None:
    places = {name: desk.join(name, priority=name == "h") for name in "abcdefgh"}
    urgent = desk.join("x", priority=1)
    assert isinstance(places["g"].future.exception(), QueueFullError)
    assert desk.line.waiting == 8
    with pytest.raises(QueueFullError):
        desk.join("y", priority=0)
    desk.release(2)
    assert desk.served == ["h", "x"]
    assert urgent.future.done()


async def test_what_came_free_unnoticed_is_used_before_anyone_is_refused(desk: Desk) -> None:
    for number in range(8):
        desk.join(str(number))
    desk.free = 1
    desk.join("x")
    assert desk.served == ["0"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_waiting", -1), ("max_bytes", -1), ("handicap", -0.1), ("bytes_per_second", 0)],
)
def test_settings_that_cannot_work_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"queue {field} = {value}: give"):
        Line(**{field: value})


# --- deadlines ---------------------------------------------------------------------------------------------


async def test_the_deadline_ends_the_wait(desk: Desk) -> None:
    waiting = desk.wait("a", seconds=0.01)
    with pytest.raises(QueueTimeoutError) as late:
        await asyncio.wait_for(waiting, 5)
    assert (late.value.status, late.value.code, late.value.retry_after) == (503, "queue_timeout", 30)
    assert (desk.line.waiting, desk.line.held_bytes) == (0, 0)
    desk.release()
    assert desk.served == []


async def test_a_deadline_that_is_over_does_not_wait(desk: Desk) -> None:
    with pytest.raises(QueueTimeoutError):
        await desk.wait("a", seconds=0)
    desk.free = 1
    assert await desk.wait("b", seconds=0) == "b"


async def test_a_request_that_was_served_has_no_timer_left(desk: Desk) -> None:
    place = desk.join("a")
    timer = place.timer
    desk.release()
    assert timer is not None
    assert timer.cancelled()


# --- who leaves --------------------------------------------------------------------------------------------


async def test_who_leaves_frees_the_place(desk: Desk) -> None:
    tasks = [desk.wait(name) for name in "abc"]
    await ticks()
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert desk.line.waiting == 2
    desk.release(3)
    assert desk.served == ["a", "c"]
    assert desk.free == 1


async def test_a_kick_before_the_cancelled_one_has_run(desk: Desk) -> None:
    tasks = [desk.wait(name) for name in "ab"]
    await ticks()
    tasks[0].cancel()
    desk.release()  # in the same tick
    await asyncio.gather(*tasks, return_exceptions=True)
    assert desk.served == ["b"]
    assert (desk.free, desk.line.waiting) == (0, 0)


async def test_what_a_cancelled_one_was_given_goes_to_the_next(desk: Desk) -> None:
    tasks = [desk.wait(name) for name in "ab"]
    await ticks()
    desk.release()
    tasks[0].cancel()  # in the same tick, after it was served
    await asyncio.gather(*tasks, return_exceptions=True)
    assert tasks[0].cancelled()
    assert tasks[1].result() == "b"
    assert (desk.served, desk.free) == (["b"], 0)


async def test_a_client_seen_leaving(desk: Desk) -> None:
    place = desk.join("a")
    place.fail(ConnectionError("gone"))
    with pytest.raises(ConnectionError):
        await place.future
    assert (desk.line.waiting, desk.line.held_bytes) == (0, 0)
    served = desk.join("b")
    desk.release()
    served.fail(ConnectionError("gone"))  # too late: it has its result
    assert await served.future == "b"


async def test_an_error_of_one_is_not_that_of_others(desk: Desk) -> None:
    def broken() -> str | None:
        raise KeyError("no pair")

    first = desk.line.join(lambda: None, size=1, deadline=2_000, priority=9)
    first.take = broken
    task = desk.wait("b")
    await ticks()
    desk.release()
    assert isinstance(first.future.exception(), KeyError)
    assert await task == "b"


# --- when to come again ------------------------------------------------------------------------------------


async def test_retry_after_follows_the_pace(clock: Clock) -> None:
    desk = Desk(Line(clock=clock, max_waiting=1_000))
    assert desk.line.retry_after == 1
    for number in range(100):
        desk.join(str(number))
    assert desk.line.retry_after == 30  # nobody was served yet
    for _ in range(20):  # two a second
        clock.now += 0.5
        desk.release()
        desk.join("more")
    assert desk.line.retry_after == 30  # 50, but nobody is asked to stay away longer
    for _ in range(200):  # twenty a second
        clock.now += 0.05
        desk.release()
        desk.join("more")
    assert 5 <= desk.line.retry_after <= 6
    clock.now += 11
    assert desk.line.retry_after == 30  # it has come to a halt


# --- anything at all ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
async def test_nothing_is_lost_and_nothing_lies_idle(seed: int) -> None:
    drawn = random.Random(seed)
    desk = Desk(Line(max_waiting=20, max_bytes=40 * KB), free=3)
    holding: list[str] = []
    tasks: dict[str, asyncio.Task[str]] = {}

    def collect() -> None:
        for name, task in list(tasks.items()):
            if task.done():
                del tasks[name]
                if not task.cancelled() and task.exception() is None:
                    holding.append(name)

    for step in range(400):
        what = drawn.random()
        if what < 0.5:
            priority, size = drawn.randrange(3), drawn.randrange(4 * KB)
            tasks[str(step)] = desk.wait(str(step), priority=priority, size=size)
        elif what < 0.8 and holding:
            desk.served.remove(holding.pop(drawn.randrange(len(holding))))
            desk.release()
        elif tasks:
            drawn.choice(list(tasks.values())).cancel()
        if drawn.random() < 0.7:
            await ticks()
            collect()
            assert desk.free + len(holding) == 3
            assert not (desk.free and desk.line.waiting)
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    collect()
    assert desk.free + len(holding) == 3
    assert (desk.line.waiting, desk.line.held_bytes, desk.line._kinds) == (0, 0, {})
