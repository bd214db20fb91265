"""Hooks on the engine's prefill -> decode transfer (mooncake): owned pages, exact positions, one contract."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plait.contract.layouts import Layout
from plait.engine import faults, fences, identity, state
from plait.engine.install import implements
from plait.transfer import TransferStats, destination_fault, owned_pages

_BLOCKS_AT_ONCE = 1024
"""A TCP batch of 4096 small entries is refused by mooncake; larger batches gain nothing."""

stats = TransferStats()


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
            self.update_status(room, fences.kv_poll().Failed)
        return False
    if found:
        fences.ack_fence().revive(bootstrap_addr)
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
    if state.settings.test_fault is not None:
        kv_indices = faults.swapped_owners(np.asarray(kv_indices))
    pages, positions = owned_pages(kv_indices, first_position=start, **_placement(manager))
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
    # The engine drops chunks of rooms that are over: they are neither checked nor counted.
    over = self.request_status.get(bootstrap_room, fences.kv_poll().Failed) == fences.kv_poll().Failed
    infos = [] if over else list(self.transfer_infos.get(bootstrap_room, {}).values())
    for info in infos:
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
    failed = fences.kv_poll().Failed
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
