"""Hooks that keep a room's pages until nobody reads or writes them any more, and ends that are heard.

See `plait.transfer.fence` for what is held and why.
"""

from __future__ import annotations

import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from plait.engine import state
from plait.engine.entry import end_engine
from plait.engine.install import implements
from plait.transfer import AckFence, SendFence

_MARK = (1 << 62) - 1
"""Bits of an allocator's fingerprint that are compared: it is negated, and must fit 64 bits with its sign."""

send_fence = SendFence()
_ack_fence: AckFence | None = None


def ack_fence() -> AckFence:
    """The decode side's fence, made when first needed (settings are known by then)."""
    global _ack_fence
    if _ack_fence is None:
        _ack_fence = AckFence(timeout_s=state.settings.transfer_timeout_s)
    return _ack_fence


def kv_poll() -> Any:
    """The engine's transfer states."""
    from sglang.srt.disaggregation.base import KVPoll

    return KVPoll


class _CountedQueue:
    """A transfer queue that tells the fence when a chunk is queued and when its worker is done with it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._current: int | None = None

    def put(self, chunk: Any) -> None:
        send_fence.enter(chunk.room)
        self._inner.put(chunk)

    def get(self) -> Any:
        # The worker asks for the next chunk only when it is done with the last one, however that ended.
        if self._current is not None:
            send_fence.leave(self._current)
        self._current = None
        chunk = self._inner.get()
        self._current = chunk.room
        return chunk


class _NoBlacklist(set[str]):
    """Stands in for the engine's set of failed sessions, and keeps none: a failed send fails its room, not
    every later request to that decode engine."""

    def add(self, session: str) -> None: ...


@implements("disaggregation.mooncake.conn.MooncakeKVManager.transfer_worker")
def worker_that_ends_loudly(
    original: Callable[..., None],
    self: Any,
    queue: Any,
    executor: Any,
    staging_buffer: Any = None,
    worker_index: int = 0,
) -> None:
    """Count the queue's chunks, and end the engine if the worker dies: its requests would wait for ever."""
    counted = _CountedQueue(queue)
    self.transfer_queues[worker_index] = counted
    self.failed_sessions = _NoBlacklist()
    try:
        original(self, counted, executor, staging_buffer, worker_index)
    except BaseException:
        traceback.print_exc()
        print("plait: a transfer worker died; this engine ends itself", file=sys.stderr, flush=True)
        end_engine()


@implements("disaggregation.prefill.poll_and_all_reduce_attn_cp_tp_group")
def poll_behind_fence(
    original: Callable[..., list[int]],
    pollers: Sequence[Any],
    attn_cp_cpu_group: dist.ProcessGroup,
    attn_tp_cpu_group: dist.ProcessGroup,
) -> list[int]:
    """The ranks' common status, in which a room that has ended stays `Transferring` while a rank still reads
    its pages: a failed one because other ranks may be sending, a successful one because the worker is not
    done with its records.

    The ranks' allocators are compared on the way: they must agree, or a page would mean two things.
    HAZARD: a second collective of the same group follows the first on every rank, whatever the statuses.
    """
    polls = original(pollers, attn_cp_cpu_group, attn_tp_cpu_group)
    failed, success = int(kv_poll().Failed), int(kv_poll().Success)
    for sender, status in zip(pollers, polls, strict=True):
        if status == failed and hasattr(sender, "bootstrap_room"):
            # Chunks that are still queued here are then skipped.
            sender.kv_mgr.update_status(sender.bootstrap_room, kv_poll().Failed)
    mark = state.allocator.pages.fingerprint() & _MARK if state.allocator is not None else 0
    told = torch.tensor(
        [*(send_fence.busy(getattr(sender, "bootstrap_room", -1)) for sender in pollers), mark, -mark],
        dtype=torch.int64,
    )
    dist.all_reduce(told, op=dist.ReduceOp.MAX, group=attn_cp_cpu_group)
    *busy, most, least = told.tolist()
    if most != -least:
        print(
            "plait: the ranks' page allocators differ; this engine ends itself", file=sys.stderr, flush=True
        )
        end_engine()
    return [
        int(kv_poll().Transferring) if status in (failed, success) and held else status
        for status, held in zip(polls, busy, strict=True)
    ]


@implements("managers.scheduler.Scheduler.process_pending_chunked_abort")
def abort_chunked_behind_fence(original: Callable[..., None], self: Any) -> None:
    """A prompt aborted between two of its chunks may still be read by the worker: it joins the requests in
    transfer, whose pages are released when all ranks are quiet. Elsewhere stock releases them at once."""
    req = self._pending_chunked_abort_req
    if req is None or self.chunked_req is not req or self.disaggregation_mode.value != "prefill":
        original(self)
        return
    from sglang.srt.disaggregation.utils import prepare_abort

    prepare_abort(req, "Aborted")
    req.time_stats.trace_ctx.abort(abort_info={"reason": "Aborted"})
    req.to_finish = None
    req.pending_bootstrap = False
    req.skip_radix_cache_insert = True
    req.disagg_kv_sender.abort()
    self.disagg_prefill_inflight_queue.append(req)
    self.chunked_req = None
    self._pending_chunked_abort_req = None


@implements("disaggregation.common.conn.CommonKVManager._send_multipart_locked")
def acknowledge_when_quiet(
    original: Callable[..., None], self: Any, endpoint: str, parts: list[bytes], is_ipv6: bool = False
) -> None:
    """Hold the answer to decode's abort back until this rank has stopped reading and writing for the room.

    The answer says which rank it is from: decode may ask twice (the engine on its own, and the fence), and
    two answers of one rank must not pass for the answers of two.
    """
    if parts[0] != b"ABORT_ACK":
        original(self, endpoint, parts, is_ipv6)
        return
    sender = _sender(self.attn_cp_rank).encode()
    send_fence.when_quiet(int(parts[1]), lambda: original(self, endpoint, [*parts, sender], is_ipv6))


def _sender(rank: int) -> str:
    """Name of a prefill rank in an answer. Decode lists the ranks of a group in this order (TP 1, PP 1)."""
    return f"cp-{rank}"


def _listens(info: dict[str, Any]) -> bool:
    """Whether a prefill rank's own port still takes connections; no answer at all counts as yes, since it may
    be the network. A refusal means that the process is gone, and with it everything that could write."""
    try:
        socket.create_connection((info["rank_ip"], int(info["rank_port"])), timeout=0.2).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


class _ListeningSocket:
    """The decode side's socket, which tells the fence of acknowledgements as they pass."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def recv_multipart(self) -> list[bytes]:
        message: list[bytes] = self._inner.recv_multipart()
        if message[0] == b"ABORT_ACK" and len(message) == 3:
            ack_fence().acknowledge(int(message[1]), sender=message[2].decode())
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@implements("disaggregation.mooncake.conn.MooncakeKVManager.start_decode_thread")
def listen_for_acknowledgements(self: Any) -> None:
    self.server_socket = _ListeningSocket(self.server_socket)


@implements("disaggregation.common.conn.CommonKVReceiver._send_abort_notification")
def open_fence(self: Any) -> None:
    """Before all ranks are asked to stop: their answers count from now on, one from each."""
    ack_fence().open(self.bootstrap_room)


@implements("disaggregation.mooncake.conn.MooncakeKVReceiver.poll")
def poll_receiver_behind_fence(original: Callable[..., Any], self: Any) -> Any:
    """A failed room that prefill may still be writing stays `Transferring`: its pages are not reused."""
    status = original(self)
    if status != kv_poll().Failed:
        return status
    fence, room = ack_fence(), self.bootstrap_room
    if self.init_time is None or not self.bootstrap_infos:
        fence.forget(room)  # prefill never learned of these pages
        return status
    if not self.abort_notified:
        # HAZARD: exactly once, or a rank that answers twice would stand for one that is still writing.
        self.abort_notified = True
        self._send_abort_notification()
    if fence.lost(self.bootstrap_addr):
        for rank, info in enumerate(self.bootstrap_infos):
            if not _listens(info):
                fence.acknowledge(room, sender=_sender(rank))
    if fence.holds(room, ranks=len(self.bootstrap_infos)):
        return kv_poll().Transferring
    fence.forget(room)
    return status


@implements("disaggregation.common.conn.CommonKVManager._handle_node_failure")
def note_silent_prefill(result: None, self: Any, failed_bootstrap_addr: str) -> None:
    del result, self
    ack_fence().lose(failed_bootstrap_addr)
