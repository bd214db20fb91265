"""No page is reused before its transfer has ended: the prefill side's count, the decode side's wait."""

from __future__ import annotations

import threading
import time

import pytest

from plait.transfer import AckFence, SendFence


class TestSendFence:
    def test_a_room_is_busy_from_the_first_chunk_until_the_last_is_done(self) -> None:
        fence = SendFence()
        assert not fence.busy(7)
        fence.enter(7)
        fence.enter(7)
        assert fence.busy(7)
        assert fence.rooms() == 1
        fence.leave(7)
        assert fence.busy(7)
        fence.leave(7)
        assert not fence.busy(7)
        assert fence.rooms() == 0

    def test_rooms_are_apart(self) -> None:
        fence = SendFence()
        fence.enter(1)
        fence.enter(2)
        fence.leave(1)
        assert not fence.busy(1)
        assert fence.busy(2)

    def test_a_quiet_room_is_answered_at_once(self) -> None:
        called: list[str] = []
        SendFence().when_quiet(3, lambda: called.append(threading.current_thread().name))
        assert called == [threading.current_thread().name]

    def test_a_busy_room_is_answered_by_the_worker_when_it_is_done(self) -> None:
        fence = SendFence()
        called: list[str] = []
        fence.enter(3)
        fence.enter(3)
        for name in ("a", "b"):
            fence.when_quiet(3, lambda name=name: called.append(name))
        fence.leave(3)
        assert called == []
        worker = threading.Thread(target=fence.leave, args=(3,))
        worker.start()
        worker.join()
        assert called == ["a", "b"]

    def test_a_callback_runs_once_and_sees_the_room_quiet(self) -> None:
        fence = SendFence()
        seen: list[bool] = []
        fence.enter(3)
        fence.when_quiet(3, lambda: seen.append(fence.busy(3)))  # would hang if called under the lock
        fence.leave(3)
        fence.enter(3)
        fence.leave(3)
        assert seen == [False]

    def test_a_callback_may_use_the_fence(self) -> None:
        fence = SendFence()
        fence.enter(3)
        fence.when_quiet(3, lambda: fence.enter(4))
        fence.leave(3)
        assert fence.busy(4)

    def test_leaving_a_room_that_was_not_entered_is_an_error(self) -> None:
        fence = SendFence()
        with pytest.raises(RuntimeError, match="room 9"):
            fence.leave(9)
        assert not fence.busy(9)

    def test_many_threads_leave_nothing_behind_and_answer_each_once(self) -> None:
        fence = SendFence()
        answers: list[int] = []
        rooms = range(5)

        def work(seed: int) -> None:
            for step in range(200):
                room = (seed + step) % len(rooms)
                fence.enter(room)
                fence.when_quiet(room, lambda room=room: answers.append(room))
                fence.leave(room)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert fence.rooms() == 0
        assert sorted(answers) == sorted(room for room in rooms for _ in range(160))


class TestAckFence:
    def test_a_room_is_held_until_every_rank_has_acknowledged(self) -> None:
        fence = AckFence(timeout_s=60)
        assert fence.open(5)
        for sender in "ab":
            assert fence.holds(5, ranks=3)
            fence.acknowledge(5, sender=sender)
        assert fence.holds(5, ranks=3)
        fence.acknowledge(5, sender="c")
        assert not fence.holds(5, ranks=3)
        assert fence.expired == 0

    def test_a_rank_that_answers_twice_counts_once(self) -> None:
        fence = AckFence(timeout_s=60)
        fence.open(5)
        for _ in range(2):
            fence.acknowledge(5, sender="a")
        assert fence.holds(5, ranks=2)
        fence.acknowledge(5, sender="b")
        assert not fence.holds(5, ranks=2)

    def test_opening_twice_asks_once_and_keeps_what_was_acknowledged(self) -> None:
        fence = AckFence(timeout_s=60)
        assert fence.open(5)
        fence.acknowledge(5, sender="a")
        assert not fence.open(5)
        assert not fence.holds(5, ranks=1)

    def test_acknowledgements_of_rooms_that_are_not_held_count_for_nothing(self) -> None:
        fence = AckFence(timeout_s=60)
        fence.acknowledge(5, sender="a")
        assert not fence.holds(5, ranks=1)
        fence.open(5)
        assert fence.holds(5, ranks=1)

    def test_a_forgotten_room_starts_anew(self) -> None:
        fence = AckFence(timeout_s=60)
        fence.open(5)
        fence.acknowledge(5, sender="a")
        fence.forget(5)
        assert not fence.holds(5, ranks=1)
        assert fence.open(5)
        assert fence.holds(5, ranks=1)

    def test_a_prefill_that_does_not_answer_may_still_write(self) -> None:
        fence = AckFence(timeout_s=60)
        fence.open(1)
        fence.lose("slow")
        assert fence.lost("slow")
        assert not fence.lost("other")
        assert fence.holds(1, ranks=2), "its ranks go on though its server is slow"
        fence.revive("slow")
        assert not fence.lost("slow")

    def test_a_silent_prefill_is_waited_for_only_so_long_and_counted_once(self) -> None:
        fence = AckFence(timeout_s=0.05)
        fence.open(5)
        assert fence.holds(5, ranks=2)
        deadline = time.monotonic() + 20
        while fence.holds(5, ranks=2):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not fence.holds(5, ranks=2)
        assert fence.expired == 1

    def test_acknowledgements_from_many_threads_all_count(self) -> None:
        fence = AckFence(timeout_s=60)
        fence.open(5)
        threads = [
            threading.Thread(target=lambda n=n: [fence.acknowledge(5, sender=f"{n}.{i}") for i in range(100)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert fence.holds(5, ranks=401)
        assert not fence.holds(5, ranks=400)
