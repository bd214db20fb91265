"""What an error status of the API server means, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from plait.router.discovery.kubernetes.access import Access
from plait.router.discovery.kubernetes.errors import ApiError, GoneError


def refusal(verb: str, access: Access, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error for this answer to `verb` pods; `body` may be cut off."""
    said = _message(body)
    where = f"pods in namespace {access.namespace}"
    if status == 410:
        return GoneError(f"{verb} {where}: the version asked for is too old: {said}")
    if status == 401:
        return ApiError(
            f"{verb} {where}: the API server does not accept the token of {access.token_file} (401: {said}): "
            f"it has ended, or is another cluster's; it is read again for each request"
        )
    if status == 403:
        return ApiError(
            f"the router may not {verb} {where}: grant its service account the verbs get, list and watch "
            f"on pods there, by a Role and a RoleBinding (403: {said})"
        )
    text = f"{verb} {where} at {access.server}: status {status}: {said}"
    return ApiError(text, retry_after=_seconds(headers))


def _message(body: bytes) -> str:
    """What a `Status` object says; of anything else the beginning."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = None
    text = told.get("message") if isinstance(told, dict) else None
    if not isinstance(text, str):
        text = body.decode("utf-8", "replace")
    return " ".join(text.split())[:300] or "no message"


def _seconds(headers: Mapping[str, str]) -> float:
    value = next((v for k, v in headers.items() if k.lower() == "retry-after"), "")
    return float(value) if value.isdecimal() else 0.0
