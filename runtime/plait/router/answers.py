"""Engine answers: the failures that hide in them, and prompt logprobs merged from prefill into decode.

Engines say "failed" in three ways: an HTTP status, an `error` object inside a stream that began with 200,
and an answer that finished by abort. The last two look like success to whoever reads the status only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

# Looked for before parsing: answers that hold neither are most, and need no parsing at all.
_MARKS = (b'"error"', b'"abort"')
_MAX_MESSAGE = 4000


class EngineError(NamedTuple):
    """What an engine said went wrong. `status` 0: it named none.

    `plain`: in a way that clients take for an error; a mere finish by abort looks to them like an end.
    """

    message: str
    status: int = 0
    type: str | None = None
    param: str | None = None
    plain: bool = True


def may_hide_error(payload: bytes) -> bool:
    """Whether `payload` (JSON, or a piece of a stream of it) is worth parsing for a failure."""
    return _MARKS[0] in payload or _MARKS[1] in payload


def hidden_error(payload: bytes) -> EngineError | None:
    """The failure inside one JSON answer or event payload that came with status 200, or None."""
    if not may_hide_error(payload):
        return None
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    return next(filter(None, map(_find, value if isinstance(value, list) else [value])), None)


def stated_error(body: bytes, *, status: int) -> EngineError:
    """The failure that an engine states in the body of an answer with an error `status`.

    Understands {"error": {...}}, SGLang's flat form of it and FastAPI's {"detail": ...}; else it quotes.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if isinstance(value, dict):
        inner = value.get("error", value)
        if isinstance(inner, dict) and isinstance(inner.get("message"), str):
            return _error(inner)._replace(status=status)
        for text in (inner, value.get("detail"), value.get("message")):
            if isinstance(text, str) and text:
                return EngineError(text[:_MAX_MESSAGE], status)
        if "detail" in value:
            return EngineError(orjson.dumps(value["detail"]).decode()[:_MAX_MESSAGE], status)
    text = body.decode("utf-8", "replace").strip()
    return EngineError(text[:_MAX_MESSAGE] or f"HTTP {status} without a message", status)


def merge_prompt_logprobs(prefill: bytes, decode: bytes) -> bytes:
    """The decode engine's /generate answer with the prompt's logprobs that only prefill computed.

    Lists of input logprobs are joined, prefill's in front (as SGLang's own load balancer did); a field that
    decode left out is taken from prefill. Raises ValueError where the two answers do not fit together.
    """
    first, last = orjson.loads(prefill), orjson.loads(decode)
    if type(first) is not type(last) or (isinstance(last, list) and len(first) != len(last)):
        raise ValueError("prefill and decode answered with different numbers of results")
    pairs: Iterable[tuple[Any, Any]] = (
        zip(first, last, strict=True) if isinstance(last, list) else [(first, last)]
    )
    for source, target in pairs:
        if not (isinstance(source, dict) and isinstance(target, dict)):
            raise ValueError("a result is not a JSON object")
        # Not asked for in this item of a batch: neither side has them.
        if not isinstance(source.get("meta_info"), dict) or not isinstance(target.get("meta_info"), dict):
            raise ValueError("a result has no meta_info")
        _merge_meta(source["meta_info"], target["meta_info"])
    return orjson.dumps(last)


def _merge_meta(source: dict[str, Any], target: dict[str, Any]) -> None:
    for name, value in source.items():
        if not (name.startswith("input_") and "logprobs" in name):
            continue
        joined = isinstance(value, list) and "_flat" not in name and "_shape" not in name
        if joined and isinstance(target.get(name), list):
            target[name] = value + target[name]
        elif value is not None:
            target[name] = value


def _find(value: object) -> EngineError | None:
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if isinstance(error, dict):
        return _error(error)
    if error:
        return EngineError(str(error)[:_MAX_MESSAGE])
    meta = value.get("meta_info")
    reasons = [meta.get("finish_reason")] if isinstance(meta, dict) else []
    choices = value.get("choices")
    reasons += (
        [c.get("finish_reason") for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
    )
    for reason in reasons:
        if reason == "abort":
            return EngineError("the engine aborted the request", plain=False)
        if isinstance(reason, dict) and reason.get("type") == "abort":
            status = reason.get("status_code")
            message = reason.get("message") or "the engine aborted the request"
            return EngineError(
                str(message)[:_MAX_MESSAGE], status if isinstance(status, int) else 0, plain=False
            )
    return None


def _error(inner: dict[str, Any]) -> EngineError:
    code, kind, param = inner.get("code"), inner.get("type"), inner.get("param")
    return EngineError(
        str(inner.get("message") or "the engine named no reason")[:_MAX_MESSAGE],
        code if isinstance(code, int) and 400 <= code < 600 else 0,
        kind if isinstance(kind, str) else None,
        param if isinstance(param, str) else None,
    )
