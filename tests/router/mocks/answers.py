"""What engines say: stock SGLang's answers, streams and errors, as bytes."""

from __future__ import annotations

import time
from typing import Any

import orjson

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
PROMPT_ROUTES = (CHAT, COMPLETIONS, GENERATE)
DONE = b"data: [DONE]\n\n"

# The message that SGLang 0.5.17 gives with each status: a request it refuses, its queue full, its own fault.
MESSAGES = {
    400: "The input (9001 tokens) is longer than the model's context length (8192 tokens).",
    422: "Input should be a valid list",
    429: "Too many requests.",
    500: "Internal server error: CUDA error",
    503: "The request queue is full.",
}
_TYPES = {400: "BadRequest", 422: "invalid_request_error", 500: "InternalServerError"}


def error(path: str, status: int) -> bytes:
    """An error answer: flat on the OpenAI routes (serving_base.py), nested on /generate (http_server.py)."""
    inner = {
        "object": "error",
        "message": MESSAGES[status],
        "type": _TYPES.get(status, str(status)),
        "param": None,
        "code": status,
    }
    return orjson.dumps({"error": inner} if path == GENERATE else inner)


def whole(path: str, rid: str, events: int) -> bytes:
    """The answer to a request that is not streamed."""
    text = " a" * events
    if path == GENERATE:
        meta = {"id": rid, "finish_reason": {"type": "length", "length": events}, "prompt_tokens": 3}
        return orjson.dumps({"text": text, "output_ids": [1] * events, "meta_info": meta})
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": text}} if path == CHAT else {"text": text}
    return orjson.dumps(_head(path, rid, "chat.completion") | {"choices": [choice], "usage": _usage(events)})


def event(path: str, rid: str, number: int, *, size: int = 2, finish: str | None = None) -> bytes:
    """One event of a stream, with `size` bytes of text."""
    text = " a"[:size] if size <= 2 else " " + "a" * (size - 1)
    if path == GENERATE:
        meta = {"id": rid, "finish_reason": None, "completion_tokens": number + 1}
        return _data({"text": text, "meta_info": meta})
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
    choice |= {"delta": {"content": text}} if path == CHAT else {"text": text}
    return _data(_head(path, rid, "chat.completion.chunk") | {"choices": [choice]})


def error_event(status: int = 500) -> bytes:
    """An error inside a stream that began with 200 (create_streaming_error_response)."""
    inner = {
        "object": "error",
        "message": MESSAGES[status],
        "type": "InternalServerError",
        "param": None,
        "code": status,
    }
    return _data({"error": inner})


def aborted_event(path: str, rid: str) -> bytes:
    """The last event of a stream that the scheduler aborted without a status."""
    if path == GENERATE:
        reason = {"type": "abort", "message": "KVTransferError: aborted"}
        return _data({"text": "", "meta_info": {"id": rid, "finish_reason": reason}})
    return event(path, rid, 0, finish="abort")


def aborted_whole(path: str, rid: str) -> bytes:
    """The answer of a request that the scheduler aborted without a status."""
    if path == GENERATE:
        reason = {"type": "abort", "message": "KVTransferError: aborted"}
        return orjson.dumps({"text": "", "meta_info": {"id": rid, "finish_reason": reason}})
    return whole(path, rid, 0).replace(b'"finish_reason":"stop"', b'"finish_reason":"abort"')


def models(model: str) -> bytes:
    """`GET /v1/models`."""
    card = {"id": model, "object": "model", "created": 1, "owned_by": "sglang", "max_model_len": 8192}
    return orjson.dumps({"object": "list", "data": [card]})


def status(
    role: str, *, wire_hash: str, started_at: float, in_flight: int, cp: int = 1, model: str = "tiny"
) -> bytes:
    """`GET /plait/status`, in the form of plait.contract.status (written out: a test of that form too)."""
    rank = {"pid": 1000, "updated_at": time.time(), "age_s": 0.05, "running": in_flight}
    return orjson.dumps(
        {
            "role": role,
            "layout": "shared" if role == "prefill" else "plain",
            "split": "page-interleave" if role == "prefill" else "",
            "cp": cp,
            "model": model,
            "wire_hash": wire_hash,
            "group_hash": "group",
            "started_at": started_at,
            "ranks": [{"rank": number, **rank} for number in range(cp)],
        }
    )


def _data(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _head(path: str, rid: str, kind: str) -> dict[str, Any]:
    return {
        "id": rid,
        "object": kind if path == CHAT else "text_completion",
        "created": 1,
        "model": "tiny",
    }


def _usage(events: int) -> dict[str, int]:
    return {"prompt_tokens": 3, "completion_tokens": events, "total_tokens": 3 + events}
