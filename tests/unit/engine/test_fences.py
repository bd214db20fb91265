"""A room's pages stay until every rank has ended with it, on both sides, whatever order the news comes in."""

from __future__ import annotations

import os
import queue
import signal
import socket
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from plait.contract.settings import Settings
from plait.engine import fences, state
from plait.transfer import SendFence


@pytest.fixture(autouse=True)
def own_fences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fences, "send_fence", SendFence())
    monkeypatch.setattr(fences, "_ack_fence", None)


def test_the_ack_fence_waits_as_long_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "settings", Settings(transfer_timeout_s=7.5))
    assert fences.ack_fence()._timeout_s == 7.5
    assert fences.ack_fence() is fences.ack_fence()


class TestQueue:
    def test_a_chunk_is_counted_from_the_queue_until_the_worker_asks_for_the_next(self) -> None:
        counted = fences._CountedQueue(queue.Queue())
        counted.put(SimpleNamespace(room=1))
        counted.put(SimpleNamespace(room=2))
        assert fences.send_fence.busy(1)
        assert counted.get().room == 1
        assert fences.send_fence.busy(1), "the worker is at it"
        assert counted.get().room == 2
        assert not fences.send_fence.busy(1)
        assert fences.send_fence.busy(2)

    def test_a_room_is_busy_while_any_of_its_chunks_waits(self) -> None:
        counted = fences._CountedQueue(queue.Queue())
        for _ in range(2):
            counted.put(SimpleNamespace(room=1))
        counted.get()
        counted.get()
        assert fences.send_fence.busy(1)

    def test_failed_sessions_are_forgotten(self) -> None:
        blacklist = fences._NoBlacklist()
        blacklist.add("decode:1")
        assert "decode:1" not in blacklist
        assert len(blacklist) == 0


class TestWorker:
    def run(self, monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> SimpleNamespace:
        manager = SimpleNamespace(transfer_queues=["q0", "q1"], failed_sessions={"d"})
        ended: list[str] = []
        monkeypatch.setattr(fences, "end_engine", lambda: ended.append("ended"))

        def original(self: object, queue: object, executor: object, staging: object, index: int) -> None:
            assert queue is manager.transfer_queues[1]
            assert (executor, staging, index) == ("pool", None, 1)
            if error is not None:
                raise error

        fences.worker_that_ends_loudly(original, manager, "q1", "pool", None, 1)
        manager.ended = ended
        return manager

    def test_it_runs_on_a_counted_queue_without_a_blacklist(self, monkeypatch: pytest.MonkeyPatch) -> None:
        manager = self.run(monkeypatch, None)
        assert manager.transfer_queues[0] == "q0"
        assert isinstance(manager.transfer_queues[1], fences._CountedQueue)
        assert manager.failed_sessions == set()
        assert manager.ended == []

    @pytest.mark.parametrize("error", [RuntimeError("Transfer thread failed"), SystemExit(1)])
    def test_its_death_ends_the_engine_and_is_heard(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
    ) -> None:
        assert self.run(monkeypatch, error).ended == ["ended"]
        said = capsys.readouterr().err
        assert "plait: a transfer worker died" in said
        assert type(error).__name__ in said

    def test_the_end_tells_the_server_and_leaves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        done: list[object] = []
        monkeypatch.setattr(os, "getppid", lambda: 4711)
        monkeypatch.setattr(os, "kill", lambda pid, number: done.append((pid, number)))
        monkeypatch.setattr(os, "_exit", done.append)
        fences.end_engine()
        assert done == [(4711, signal.SIGQUIT), 70]


@pytest.mark.usefixtures("engine")
class TestPrefillPolls:
    FAILED, TRANSFERRING, SUCCESS = 0, 3, 4

    def poll(
        self, monkeypatch: pytest.MonkeyPatch, polls: list[int], *, elsewhere: list[int], rooms: list[int]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """What the scheduler hears: `polls` is the group's common answer, `elsewhere` what other ranks are
        busy with."""
        updated: list[tuple[int, int]] = []
        manager = SimpleNamespace(update_status=lambda room, status: updated.append((room, int(status))))
        senders = [SimpleNamespace(bootstrap_room=room, kv_mgr=manager) for room in rooms]

        def all_reduce(tensor: torch.Tensor, op: object, group: object) -> None:
            assert op == dist.ReduceOp.MAX
            assert group == "cp"
            others = torch.tensor([*elsewhere, *tensor[-2:].tolist()], dtype=tensor.dtype)
            tensor.copy_(torch.maximum(tensor, others))

        monkeypatch.setattr(dist, "all_reduce", all_reduce)
        heard = fences.poll_behind_fence(lambda *_: list(polls), senders, "cp", "tp")
        return heard, updated

    def test_the_numbers_are_the_engines(self) -> None:
        poll = fences.kv_poll()
        assert (poll.Failed, poll.Transferring, poll.Success) == (0, 3, 4)

    def test_a_failed_room_is_kept_while_this_rank_sends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fences.send_fence.enter(7)
        polls, rooms = [self.FAILED, self.FAILED, self.SUCCESS], [7, 8, 9]
        heard, updated = self.poll(monkeypatch, polls, elsewhere=[0, 0, 0], rooms=rooms)
        assert heard == [self.TRANSFERRING, self.FAILED, self.SUCCESS]
        assert updated == [(7, self.FAILED), (8, self.FAILED)]

    def test_a_failed_room_is_kept_while_another_rank_sends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        heard, _ = self.poll(monkeypatch, [self.FAILED], elsewhere=[1], rooms=[7])
        assert heard == [self.TRANSFERRING]

    def test_other_states_are_left_alone_however_busy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        states = [1, 2, 3]
        heard, updated = self.poll(monkeypatch, states, elsewhere=[1, 1, 1], rooms=[1, 2, 3])
        assert heard == states
        assert updated == []

    def test_success_waits_for_the_worker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The worker still looks the room up after it has said so: cleared records would end it."""
        heard, updated = self.poll(monkeypatch, [self.SUCCESS] * 2, elsewhere=[1, 0], rooms=[7, 8])
        assert heard == [self.TRANSFERRING, self.SUCCESS]
        assert updated == []

    def test_allocators_that_differ_end_the_engine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ended: list[bool] = []
        monkeypatch.setattr(fences, "end_engine", lambda: ended.append(True))

        def other_rank(tensor: torch.Tensor, **_: object) -> None:
            tensor[-2] += 1

        monkeypatch.setattr(dist, "all_reduce", other_rank)
        fences.poll_behind_fence(lambda *_: [3], [SimpleNamespace(bootstrap_room=7)], "cp", "tp")
        assert ended == [True]

    def test_every_rank_takes_part_whatever_it_polled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[int] = []
        monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: calls.append(len(tensor)))
        fences.poll_behind_fence(lambda *_: [4, 4], [SimpleNamespace(), SimpleNamespace()], "cp", "tp")
        assert calls == [2 + 2], "each room, and the allocator's mark both ways"


class TestAcknowledge:
    MANAGER = SimpleNamespace(attn_tp_rank=0, pp_rank=0, attn_cp_rank=3)

    def send(self, sent: list[list[bytes]], parts: list[bytes]) -> None:
        def original(manager: object, endpoint: str, parts: list[bytes], is_ipv6: bool) -> None:
            assert (manager, endpoint, is_ipv6) == (self.MANAGER, "tcp://d", True)
            sent.append(parts)

        fences.acknowledge_when_quiet(original, self.MANAGER, "tcp://d", parts, True)

    def test_an_acknowledgement_waits_for_the_room_and_says_who_it_is_from(self) -> None:
        sent: list[list[bytes]] = []
        fences.send_fence.enter(7)
        self.send(sent, [b"ABORT_ACK", b"7"])
        assert sent == []
        fences.send_fence.leave(7)
        assert sent == [[b"ABORT_ACK", b"7", b"cp-3"]]

    def test_a_quiet_room_is_acknowledged_at_once(self) -> None:
        sent: list[list[bytes]] = []
        self.send(sent, [b"ABORT_ACK", b"7"])
        assert sent == [[b"ABORT_ACK", b"7", b"cp-3"]]

    def test_other_messages_do_not_wait(self) -> None:
        sent: list[list[bytes]] = []
        fences.send_fence.enter(7)
        self.send(sent, [b"7", b"4", b"0"])
        assert sent == [[b"7", b"4", b"0"]]


class TestDecode:
    def test_the_socket_tells_the_fence_and_passes_everything_on(self) -> None:
        messages = [[b"ABORT_ACK", b"7", b"cp-1"], [b"7", b"4", b"0"]]
        inner = SimpleNamespace(recv_multipart=lambda: messages.pop(0), port=5)
        manager = SimpleNamespace(server_socket=inner)
        fences.listen_for_acknowledgements(manager)
        fences.ack_fence().open(7)
        assert manager.server_socket.port == 5
        assert manager.server_socket.recv_multipart() == [b"ABORT_ACK", b"7", b"cp-1"]
        assert not fences.ack_fence().holds(7, ranks=1)
        assert manager.server_socket.recv_multipart() == [b"7", b"4", b"0"]

    def receiver(self, **other: object) -> SimpleNamespace:
        """A receiver whose notification runs through the hook on it, as in the engine."""
        one = SimpleNamespace(
            init_time=1.0,
            bootstrap_infos=[{}, {}],
            bootstrap_room=7,
            bootstrap_addr="p:1",
            abort_notified=False,
            told=[],
        )
        one.__dict__.update(other)

        def notify() -> None:
            fences.open_fence(one)
            one.told.append("abort")

        one._send_abort_notification = notify
        return one

    def poll(self, one: SimpleNamespace, status: object) -> object:
        return fences.poll_receiver_behind_fence(lambda _: status, one)

    @pytest.mark.usefixtures("engine")
    def test_a_failed_room_is_kept_until_every_rank_has_answered(self) -> None:
        states, one = fences.kv_poll(), self.receiver()
        for _ in range(2):
            assert self.poll(one, states.Failed) == states.Transferring
        assert one.told == ["abort"]
        assert one.abort_notified
        fence = fences.ack_fence()
        for _ in range(2):
            fence.acknowledge(7, sender="cp-0")
        assert self.poll(one, states.Failed) == states.Transferring
        fence.acknowledge(7, sender="cp-1")
        assert self.poll(one, states.Failed) == states.Failed
        assert self.poll(one, states.Failed) == states.Failed, "once released, it stays so"
        assert one.told == ["abort"]

    @pytest.mark.usefixtures("engine")
    def test_answers_to_the_engines_own_notification_count(self) -> None:
        states, one = fences.kv_poll(), self.receiver()
        one._send_abort_notification()  # the engine's abort()
        one.abort_notified = True
        for rank in range(2):
            fences.ack_fence().acknowledge(7, sender=f"cp-{rank}")
        assert self.poll(one, states.Failed) == states.Failed
        assert one.told == ["abort"]

    @pytest.mark.usefixtures("engine")
    def test_ranks_whose_port_is_closed_are_not_waited_for(self) -> None:
        """The prefill's server does not answer: one rank is gone, the other lives and may write."""
        with socket.create_server(("127.0.0.1", 0)) as living, socket.create_server(("127.0.0.1", 0)) as dead:
            ports = [one.getsockname()[1] for one in (living, dead)]
            dead.close()
            infos = [{"rank_ip": "127.0.0.1", "rank_port": port} for port in ports]
            states, one = fences.kv_poll(), self.receiver(bootstrap_infos=infos)
            assert self.poll(one, states.Failed) == states.Transferring
            fences.note_silent_prefill(None, SimpleNamespace(), "p:1")
            assert self.poll(one, states.Failed) == states.Transferring, "the living rank may write"
            living.close()
            assert self.poll(one, states.Failed) == states.Failed

    @pytest.mark.usefixtures("engine")
    @pytest.mark.parametrize("never_asked", [{"init_time": None}, {"bootstrap_infos": []}])
    def test_a_room_that_prefill_was_never_told_of_is_not_kept(self, never_asked: dict[str, object]) -> None:
        states, one = fences.kv_poll(), self.receiver(**never_asked)
        assert self.poll(one, states.Failed) == states.Failed
        assert one.told == []
        assert not fences.ack_fence().holds(7, ranks=2)

    @pytest.mark.usefixtures("engine")
    def test_rooms_that_go_well_are_left_alone(self) -> None:
        states, one = fences.kv_poll(), self.receiver()
        for status in (states.Bootstrapping, states.WaitingForInput, states.Transferring, states.Success):
            assert self.poll(one, status) == status
        assert one.told == []

    def test_an_answer_that_names_no_rank_counts_for_nothing(self) -> None:
        manager = SimpleNamespace(server_socket=SimpleNamespace(recv_multipart=lambda: [b"ABORT_ACK", b"7"]))
        fences.listen_for_acknowledgements(manager)
        fences.ack_fence().open(7)
        assert manager.server_socket.recv_multipart() == [b"ABORT_ACK", b"7"]
        assert fences.ack_fence().holds(7, ranks=1)


class TestChunkedAbort:
    def scheduler(self, mode: str) -> SimpleNamespace:
        aborted: list[str] = []
        req = SimpleNamespace(
            time_stats=SimpleNamespace(trace_ctx=SimpleNamespace(abort=lambda **_: None)),
            to_finish="x",
            pending_bootstrap=True,
            disagg_kv_sender=SimpleNamespace(abort=lambda: aborted.append("abort")),
            finished_reason=None,
        )
        return SimpleNamespace(
            _pending_chunked_abort_req=req,
            chunked_req=req,
            disaggregation_mode=SimpleNamespace(value=mode),
            disagg_prefill_inflight_queue=[],
            aborted=aborted,
        )

    @pytest.mark.usefixtures("engine")
    def test_it_joins_the_requests_in_transfer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from sglang.srt.disaggregation import utils

        monkeypatch.setattr(utils, "prepare_abort", lambda req, message: None)
        scheduler, called = self.scheduler("prefill"), []
        req = scheduler.chunked_req
        fences.abort_chunked_behind_fence(called.append, scheduler)
        assert called == [], "stock would release the pages at once"
        assert scheduler.disagg_prefill_inflight_queue == [req]
        assert scheduler.aborted == ["abort"]
        assert scheduler.chunked_req is None
        assert scheduler._pending_chunked_abort_req is None
        assert req.skip_radix_cache_insert
        assert not req.pending_bootstrap

    def test_elsewhere_stock_does_it(self) -> None:
        scheduler, called = self.scheduler("null"), []
        fences.abort_chunked_behind_fence(called.append, scheduler)
        scheduler.chunked_req = None
        fences.abort_chunked_behind_fence(called.append, scheduler)
        assert called == [scheduler, scheduler]
