"""Error answers of the API server become texts that say what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.router.discovery.kubernetes.access import Access
from plait.router.discovery.kubernetes.errors import ApiError, GoneError, UnreachableError
from plait.router.discovery.kubernetes.refusals import refusal

ACCESS = Access("https://10.96.0.1:443", "pool", Path("/run/token"), None)


def told(status: int, body: bytes = b"", verb: str = "list", **headers: str) -> ApiError:
    error = refusal(verb, ACCESS, status, headers, body)
    assert not isinstance(error, UnreachableError)
    return error


def test_403_names_verb_resource_namespace_and_fix() -> None:
    text = str(told(403, json.dumps({"message": 'pods is forbidden: User "x"'}).encode(), "watch"))
    for part in (
        "watch pods in namespace pool",
        "get, list and watch",
        "Role",
        'pods is forbidden: User "x"',
    ):
        assert part in text


def test_401_names_the_token_file() -> None:
    text = str(told(401, b"Unauthorized"))
    assert "/run/token" in text
    assert "401: Unauthorized" in text


def test_410_is_gone() -> None:
    assert isinstance(told(410, b"{}"), GoneError)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"message": "etcd\\n is down"}', "etcd is down"),
        (b"<html>bad\n gateway</html>", "<html>bad gateway</html>"),
        (b'{"message": 5}', '{"message": 5}'),
        (b"[]", "[]"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", "no message"),
    ],
)
def test_any_body_is_told_on_one_line(body: bytes, said: str) -> None:
    assert str(told(503, body)) == f"list pods in namespace pool at {ACCESS.server}: status 503: {said}"


def test_long_bodies_are_cut() -> None:
    assert len(str(told(500, b"x" * 4096))) < 400


@pytest.mark.parametrize(("value", "seconds"), [("7", 7.0), ("soon", 0.0), ("-1", 0.0)])
def test_retry_after(value: str, seconds: float) -> None:
    assert told(429, **{"Retry-After": value}).retry_after == seconds
    assert told(429).retry_after == 0.0
