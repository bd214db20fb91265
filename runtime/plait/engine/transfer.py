"""Hooks on the engine's prefill -> decode transfer (mooncake): owned pages, exact positions, fences."""

from __future__ import annotations

import copy
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from plait.contract.layouts import Layout
from plait.engine import faults, identity, state
from plait.engine.install import implements
from plait.transfer import AckFence, SendFence, TransferStats, destination_fault, owned_pages

_BLOCKS_AT_ONCE = 1024
"""A TCP batch of 4096 small entries is refused by mooncake; larger batches gain nothing."""

send_fence = SendFence()
stats = TransferStats()
_ack_fence: AckFence | None = None


def ack_fence() -> AckFence:
    """The decode side's fence, made when first needed (settings are known by then)."""
    global _ack_fence
    if _ack_fence is None:
        _ack_fence = AckFence(timeout_s=state.settings.transfer_timeout_s)
    return _ack_fence


# --- handshake ---------------------------------------------------------------------------------------


@implements("disaggregation.common.conn.CommonKVManager.__init__")
def carry_contract(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
    """Put the wire hash into the one handshake field that both sides compare: the KV dtype.

    A peer without Plait, or with another contract, has another string there and is refused by the engine's
    own check, in either direction.
    """
    del self, rest, kwargs
    args.kv_cache_dtype_str = f"{args.kv_cache_dtype_str}+plait.{identity.wire_hash()}"


@implements("disaggregation.common.conn.CommonKVManager.try_ensure_parallel_info")
def refuse_other_contract(original: Callable[..., bool], self: Any, bootstrap_addr: str) -> bool:
    """A prefill with another contract fails the requests that named it, with both hashes in the reason."""
    try:
        found = original(self, bootstrap_addr)
    except RuntimeError as error:
        for room in list(self.addr_to_rooms_tracker.get(bootstrap_addr, ())):
            self.record_failure(room, f"the prefill at {bootstrap_addr} has another KV contract: {error}")
            self.update_status(room, _poll().Failed)
        return False
    if found:
        ack_fence().revive(bootstrap_addr)
    return found


# --- what is sent ------------------------------------------------------------------------------------


@implements("disaggregation.common.conn.CommonKVSender._prepare_send_indices")
def own_send_indices(
    original: Callable[..., Any], self: Any, kv_indices: Any, state_indices: list[Any] | None = None
) -> tuple[Any, Any, bool, bool]:
    """(own pages, their positions, last chunk?, skip?): an ndarray of positions where stock has a slice."""
    manager = self.kv_mgr
    if manager.attn_cp_size <= 1:
        result: tuple[Any, Any, bool, bool] = original(self, kv_indices, state_indices)
        return result
    start = self.curr_idx
    self.curr_idx += len(kv_indices)
    own = owned_pages(kv_indices, first_position=start, **_placement(manager))
    pages, positions = own
    if faults.is_on("drop-page") and manager.attn_cp_rank == 0:
        pages, positions = pages[1:], positions[1:]
    return pages, positions, self.curr_idx == self.num_kv_indices, False


@implements("disaggregation.mooncake.conn.MooncakeKVManager._get_dsa_cache_transfer_skip_flags")
def send_index_from_owners(self: Any, info: Any) -> tuple[bool, bool]:
    del self, info
    return False, False


@implements("disaggregation.mooncake.conn.MooncakeKVManager.maybe_send_extra")
def send_own_index_pages(
    original: Callable[..., int],
    self: Any,
    req: Any,
    prefill_state_indices: list[Any],
    executor: Any,
    target_rank_registration_info: Any = None,
) -> int:
    """The index pages that this rank owns, each to decode's page at the same position."""
    if self.attn_cp_size <= 1:
        return original(self, req, prefill_state_indices, executor, target_rank_registration_info)
    request = copy.copy(req)
    sources: list[Any] = []
    targets: list[Any] = []
    for logical, destination in zip(prefill_state_indices, req.dst_state_indices, strict=True):
        if logical is None:
            sources.append(None)
            targets.append(destination)
            continue
        own = owned_pages(logical, **_placement(self))
        sources.append(own.pages)
        targets.append(np.asarray(destination)[own.positions])
    request.dst_state_indices = targets
    return original(self, request, sources, executor, target_rank_registration_info)


def _placement(manager: Any) -> dict[str, Any]:
    return {
        "rank": manager.attn_cp_rank,
        "ranks": manager.attn_cp_size,
        "sharded": state.settings.layout is Layout.SHARED,
    }


@implements("disaggregation.mooncake.conn.MooncakeKVManager.add_transfer_request")
def check_destination(
    original: Callable[..., None],
    self: Any,
    bootstrap_room: int,
    kv_indices: Any,
    index_slice: Any,
    is_last_chunk: bool,
    aux_index: int | None = None,
    state_indices: list[Any] | None = None,
    **kwargs: Any,
) -> None:
    """Fail the room, on both sides and before a byte is sent, if its pages do not fit decode's list."""
    for info in list(self.transfer_infos.get(bootstrap_room, {}).values()):
        if info.is_dummy or isinstance(index_slice, slice):
            continue
        last = state_indices if is_last_chunk and state_indices else []
        fault = destination_fault(
            index_slice,
            destination_pages=len(info.dst_kv_indices),
            source_state=[len(one) for one in last if one is not None],
            destination_state=[
                len(there)
                for one, there in zip(last, info.dst_state_indices, strict=False)
                if one is not None
            ],
        )
        if fault:
            stats.failed(info.mooncake_session_id)
            _fail_room(self, bootstrap_room, f"room {bootstrap_room}: {fault}")
            return
        stats.pages(info.mooncake_session_id, len(kv_indices))
    original(self, bootstrap_room, kv_indices, index_slice, is_last_chunk, aux_index, state_indices, **kwargs)


def _fail_room(manager: Any, room: int, reason: str) -> None:
    failed = _poll().Failed
    manager.record_failure(room, reason)
    manager.update_status(room, failed)
    rank = (
        manager.attn_tp_rank * manager.pp_size * manager.attn_cp_size
        + manager.pp_rank * manager.attn_cp_size
        + manager.attn_cp_rank
    )
    for info in list(manager.transfer_infos.get(room, {}).values()):
        manager.sync_status_to_decode_endpoint(info.endpoint, info.dst_port, room, failed, rank)


@implements("disaggregation.mooncake.conn.MooncakeKVManager._transfer_data")
def send_in_bounded_batches(
    original: Callable[..., int],
    self: Any,
    mooncake_session_id: str,
    transfer_blocks: Sequence[tuple[int, int, int]],
) -> int:
    """0, or the first return code that is not: nothing after a failed batch is sent."""
    for first in range(0, len(transfer_blocks), _BLOCKS_AT_ONCE):
        blocks = transfer_blocks[first : first + _BLOCKS_AT_ONCE]
        started = time.perf_counter()
        if state.settings.test_fault is not None and self.attn_cp_rank == 1:
            time.sleep(faults.SLOW_SEND_S if faults.is_on("slow-send") else 0)
            code = -1 if faults.is_on("fail-send") else original(self, mooncake_session_id, blocks)
        else:
            code = original(self, mooncake_session_id, blocks)
        stats.sent(
            mooncake_session_id,
            bytes=sum(length for _, _, length in blocks),
            seconds=time.perf_counter() - started,
            failed=code != 0,
        )
        if code != 0:
            return code
    return 0


# --- fences ------------------------------------------------------------------------------------------


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
        _end_engine()


def _end_engine() -> None:
    import signal

    parent = os.getppid()
    os.kill(parent, signal.SIGQUIT)
    os._exit(70)


@implements("disaggregation.prefill.poll_and_all_reduce_attn_cp_tp_group")
def poll_behind_fence(
    original: Callable[..., list[int]],
    pollers: Sequence[Any],
    attn_cp_cpu_group: dist.ProcessGroup,
    attn_tp_cpu_group: dist.ProcessGroup,
) -> list[int]:
    """The ranks' common status, in which a failed room stays `Transferring` while any rank still sends.

    HAZARD: a second collective of the same group follows the first on every rank, whatever the statuses.
    """
    polls = original(pollers, attn_cp_cpu_group, attn_tp_cpu_group)
    failed, transferring = int(_poll().Failed), int(_poll().Transferring)
    for sender, status in zip(pollers, polls, strict=True):
        if status == failed and hasattr(sender, "bootstrap_room"):
            # Chunks that are still queued here are then skipped.
            sender.kv_mgr.update_status(sender.bootstrap_room, _poll().Failed)
    busy = torch.tensor(
        [send_fence.busy(getattr(sender, "bootstrap_room", -1)) for sender in pollers], dtype=torch.uint8
    )
    dist.all_reduce(busy, op=dist.ReduceOp.MAX, group=attn_cp_cpu_group)
    return [
        transferring if status == failed and held else status
        for status, held in zip(polls, busy.tolist(), strict=True)
    ]


@implements("disaggregation.common.conn.CommonKVManager._send_multipart_locked")
def acknowledge_when_quiet(
    original: Callable[..., None], self: Any, endpoint: str, parts: list[bytes], is_ipv6: bool = False
) -> None:
    """Hold the answer to decode's abort back until this rank has stopped reading and writing for the room."""
    if parts[0] != b"ABORT_ACK":
        original(self, endpoint, parts, is_ipv6)
        return
    send_fence.when_quiet(int(parts[1]), lambda: original(self, endpoint, parts, is_ipv6))


class _ListeningSocket:
    """The decode side's socket, which tells the fence of acknowledgements as they pass."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def recv_multipart(self) -> list[bytes]:
        message: list[bytes] = self._inner.recv_multipart()
        if message[0] == b"ABORT_ACK":
            ack_fence().acknowledge(int(message[1]))
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@implements("disaggregation.mooncake.conn.MooncakeKVManager.start_decode_thread")
def listen_for_acknowledgements(self: Any) -> None:
    self.server_socket = _ListeningSocket(self.server_socket)


@implements("disaggregation.mooncake.conn.MooncakeKVReceiver.poll")
def poll_receiver_behind_fence(original: Callable[..., Any], self: Any) -> Any:
    """A failed room that prefill may still be writing stays `Transferring`: its pages are not reused."""
    status = original(self)
    if status != _poll().Failed or self.init_time is None or not self.bootstrap_infos:
        return status
    fence, room = ack_fence(), self.bootstrap_room
    if fence.open(room):
        self._send_abort_notification()
        self.abort_notified = True
    if fence.holds(room, ranks=len(self.bootstrap_infos), address=self.bootstrap_addr):
        return _poll().Transferring
    fence.forget(room)
    return status


@implements("disaggregation.common.conn.CommonKVManager._handle_node_failure")
def release_from_the_dead(result: None, self: Any, failed_bootstrap_addr: str) -> None:
    del result, self
    ack_fence().lose(failed_bootstrap_addr)


def _poll() -> Any:
    from sglang.srt.disaggregation.base import KVPoll

    return KVPoll
