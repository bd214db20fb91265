"""The queue of keys: once each, one worker a key, gathered events, growing pauses."""

from __future__ import annotations

import threading

import pytest
from tests.unit.operator.controller.conftest import Clock

from plait_operator.controller.queue import WorkQueue


@pytest.fixture
def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(gather_s=0.1, first_s=1.0, most_s=60.0, clock=clock, rand=lambda: 1.0)


def taken(queue: WorkQueue[str]) -> str | None:
    turn = queue.get(timeout_s=0.0)
    return turn and turn.key


def test_an_event_waits_for_those_that_come_with_it(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a")
    assert taken(queue) is None
    clock.now += 0.05
    queue.add("a")
    clock.now += 0.05
    assert taken(queue) == "a"
    queue.done("a")
    assert taken(queue) is None, "two events make one turn"


def test_a_turn_tells_when_its_first_event_came(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a")
    clock.now += 3
    queue.add("a")
    turn = queue.get(timeout_s=0.0)
    assert turn is not None
    assert turn.since == 100.0


def test_keys_come_in_the_order_of_their_events(queue: WorkQueue[str], clock: Clock) -> None:
    for key in "cab":
        queue.add(key)
    clock.now += 1
    assert [taken(queue) for _ in range(3)] == ["c", "a", "b"]


def test_a_key_under_way_is_not_handed_out_until_it_is_done(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a")
    clock.now += 1
    assert taken(queue) == "a"
    queue.add("a")
    clock.now += 1
    assert taken(queue) is None
    queue.done("a")
    assert taken(queue) == "a", "the event that came meanwhile is not lost"


def test_a_later_turn_does_not_put_off_an_earlier_one(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a", after_s=5)
    queue.add("a", after_s=50)
    clock.now += 5
    assert taken(queue) == "a"
    queue.done("a")
    clock.now += 100
    assert taken(queue) is None, "the later one was the same wish"


def test_an_event_brings_a_later_turn_on(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a", after_s=50)
    queue.add("a")
    clock.now += 0.1
    assert taken(queue) == "a"
    queue.done("a")
    clock.now += 100
    assert taken(queue) is None


def test_pauses_double_up_to_the_longest_and_begin_anew_when_all_is_well(
    queue: WorkQueue[str], clock: Clock
) -> None:
    pauses = []
    for _ in range(9):
        pauses.append(queue.retry("a"))
        clock.now += pauses[-1]
        assert taken(queue) == "a"
        queue.done("a")
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    queue.forget("a")
    assert queue.retry("a") == 1


def test_one_failing_key_does_not_hold_up_another(queue: WorkQueue[str], clock: Clock) -> None:
    queue.retry("bad")
    queue.add("good")
    clock.now += 0.1
    assert taken(queue) == "good"


def test_depth_counts_what_is_due_and_waits(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a")
    queue.add("b", after_s=50)
    assert queue.depth == 0
    clock.now += 1
    assert queue.depth == 1
    taken(queue)
    clock.now += 7
    assert (queue.depth, queue.longest_turn_s) == (0, 7)


def test_a_closed_queue_wakes_its_workers_and_hands_out_nothing() -> None:
    queue: WorkQueue[str] = WorkQueue()
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(queue.get(timeout_s=30)))
    thread.start()
    queue.close()
    thread.join(5)
    assert got == [None]
    queue.add("a")
    assert taken(queue) is None


def test_many_workers_never_share_a_key() -> None:
    queue: WorkQueue[int] = WorkQueue(gather_s=0.0)
    running: set[int] = set()
    turns: list[int] = []
    clashes: list[int] = []
    lock = threading.Lock()

    def work() -> None:
        while (turn := queue.get(timeout_s=0.5)) is not None:
            with lock:
                if turn.key in running:
                    clashes.append(turn.key)
                running.add(turn.key)
                turns.append(turn.key)
            with lock:
                running.discard(turn.key)
            queue.done(turn.key)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(2000):
        queue.add(number % 7)
    for thread in threads:
        thread.join(20)
    assert not clashes
    assert set(turns) == set(range(7))


def test_turns_of_one_key_are_apart(clock: Clock) -> None:
    queue: WorkQueue[str] = WorkQueue(gather_s=0.1, apart_s=1.0, clock=clock)
    queue.add("a")
    clock.now += 0.1
    assert taken(queue) == "a", "the first waits only for what comes with it"
    queue.add("a")
    queue.done("a")
    clock.now += 0.2
    queue.add("b")
    clock.now += 0.1
    assert taken(queue) == "b", "nobody else waits for that"
    queue.done("b")
    clock.now += 0.6
    queue.add("a")
    assert taken(queue) is None
    clock.now += 0.2
    assert taken(queue) == "a"
    queue.done("a")
    clock.now += 60.0
    queue.add("a")
    clock.now += 0.1
    assert taken(queue) == "a"


def test_what_keeps_turns_apart_is_forgotten(clock: Clock) -> None:
    queue: WorkQueue[int] = WorkQueue(gather_s=0.0, apart_s=1.0, clock=clock)
    for key in range(1000):
        queue.add(key)
        turn = queue.get(timeout_s=0.0)
        assert turn is not None
        queue.done(turn.key)
        clock.now += 0.1
    assert len(queue._ended) <= 11
