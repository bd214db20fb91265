"""The dense scratch is a budget of the scheduler: a batch that would not fit is not formed.

Every request of a batch takes whole dense pages for its prefix and its chunk. The longest request always
fits (checked at start), so a request that does not fit beside others waits for the next batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plait.contract.layouts import PAGE_SIZE, Layout
from plait.engine import state
from plait.engine.install import implements
from plait.gather import pages_needed


def pages_taken(adder: Any) -> int:
    """Dense pages of the requests already in the batch that `adder` is forming."""
    return sum(
        pages_needed(len(req.prefix_indices), req.extend_range.end - len(req.prefix_indices))
        for req in adder.can_run_list
    )


def pages_wanted(adder: Any, req: Any) -> int:
    """Dense pages that `req` would take if it were added now, in the chunk that it would be given."""
    prefix = len(req.prefix_indices)
    extend = len(req.full_untruncated_fill_ids) - prefix
    if adder.rem_chunk_tokens is not None:
        extend = min(extend, max(adder.rem_chunk_tokens, PAGE_SIZE))
    return pages_needed(prefix, extend)


def over_budget(adder: Any, req: Any) -> bool:
    """Whether `req` must wait for another batch. Equal on all ranks: they schedule in lockstep."""
    if state.settings.layout is Layout.OFF or state.pool is None or not adder.can_run_list:
        return False
    budget = state.pool.scratch_tokens // PAGE_SIZE
    return pages_taken(adder) + pages_wanted(adder, req) > budget


@implements("managers.schedule_policy.PrefillAdder.add_one_req")
def add_one_req(
    original: Callable[..., Any],
    self: Any,
    req: Any,
    has_chunked_req: bool,
    truncation_align_size: int | None,
) -> Any:
    if over_budget(self, req):
        return _wait()
    return original(self, req, has_chunked_req, truncation_align_size)


@implements("managers.schedule_policy.PrefillAdder.add_one_req_ignore_eos")
def add_one_req_ignore_eos(original: Callable[..., Any], self: Any, req: Any) -> Any:
    if over_budget(self, req):
        return _wait()
    return original(self, req)


def _wait() -> Any:
    from sglang.srt.managers.schedule_policy import AddReqResult

    return AddReqResult.OTHER


# --- prompts that could never be admitted: stock would let them wait for ever -------------------------


@implements("disaggregation.prefill.PrefillBootstrapQueue._check_if_req_exceed_kv_capacity")
def refuse_on_prefill(original: Callable[..., bool], self: Any, req: Any) -> bool:
    """Admission keeps a page and the first new token free, so the longest prompt is that much shorter."""
    longest = self.max_total_num_tokens - PAGE_SIZE - 2
    return original(self, req) or _refuse(
        self.scheduler, req, tokens=len(req.origin_input_ids), limit=longest
    )


@implements("disaggregation.decode.DecodePreallocQueue._check_if_req_exceed_kv_capacity")
def refuse_on_decode(original: Callable[..., bool], self: Any, req: Any) -> bool:
    """Decode sets aside the tokens to come (or a reserve) before it takes a request."""
    from sglang.srt.disaggregation.decode import CLIP_MAX_NEW_TOKEN

    to_come = min(req.sampling_params.max_new_tokens, CLIP_MAX_NEW_TOKEN)
    tokens = len(req.origin_input_ids) + max(to_come, self.num_reserved_decode_tokens)
    return original(self, req) or _refuse(self.scheduler, req, tokens=tokens, limit=self.max_total_num_tokens)


def _refuse(scheduler: Any, req: Any, *, tokens: int, limit: int) -> bool:
    """Answer `req` with a 400 if it needs more than `limit` tokens; whether it was refused."""
    if tokens <= limit:
        return False
    from http import HTTPStatus

    from sglang.srt.disaggregation.utils import prepare_abort

    message = (
        f"Request {req.rid} needs {tokens} tokens of KV cache (prompt and tokens to come), but this engine "
        f"can hold at most {limit} for one request. Fix: a shorter prompt, fewer new tokens, or an engine "
        "with a larger --max-total-tokens"
    )
    prepare_abort(req, message, status_code=HTTPStatus.BAD_REQUEST)
    scheduler.output_streamer.stream_output([req], req.return_logprob)
    return True
