"""Malformed requests: each gets a clear 4xx in OpenAI's form, and none of it reaches an engine."""

from __future__ import annotations

import pytest
from tests.router.conformance.cases import bodies, framing, routes
from tests.router.conformance.cases.case import CHAT, Case
from tests.router.conformance.process import Router
from tests.router.conformance.wire import Reply, Wire, request

CASES = {**bodies.CASES, **framing.CASES, **routes.CASES}


def test_there_are_forty_at_least() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", CASES)
def test_malformed(router: Router, name: str) -> None:
    case = CASES[name]
    with Wire(router.address) as wire:
        wire.send(case.sent)
        answer = wire.reply(method=case.method)
        assert answer.status in case.status, answer.body[:500]
        if case.method != "HEAD":
            _assert_openai_error(answer, case)
        closes = answer.headers.get("connection", "").lower() == "close"
        assert case.after == "as it says" or closes == (case.after == "closed")
        if closes:
            assert wire.closed()
        else:
            wire.send(request("GET", "/health"))
            assert wire.reply(method="GET").status == 200
    assert [(e.prompts, e.strays) for e in router.engines] == [([], []), ([], [])]


def test_what_follows_a_refused_request_is_not_run(router: Router) -> None:
    """A connection that is given up takes what stands behind the refused request with it."""
    with Wire(router.address) as wire:
        wire.send(framing.LENGTHS["two lengths"].sent + request("POST", CHAT, b'{"messages":[]}'))
        assert wire.reply().status == 400
        assert wire.closed()
    assert [e.asked for e in router.engines] == [0, 0]


def test_refused_requests_in_a_row_are_each_answered(router: Router) -> None:
    """A usable connection stays so: refused, served, refused, in order, also when all came at once."""
    good = request("POST", CHAT, b'{"messages":[]}')
    refused = bodies.CASES["not JSON: cut off"].sent
    with Wire(router.address) as wire:
        wire.send(refused + good + refused + good)
        assert [wire.reply().status for _ in range(4)] == [400, 200, 400, 200]
    assert [len(e.prompts) for e in router.engines] == [2, 2]


@pytest.mark.parametrize("tell", [b"", b"POST /v1", request("POST", CHAT, b'{"messages":[]}')[:-5]])
def test_client_that_gives_up_half_way(router: Router, tell: bytes) -> None:
    """Nobody is left to be answered; the connection ends and no engine hears of it."""
    with Wire(router.address) as wire:
        wire.send(tell)
        wire.finish()
        assert wire.ended()
    assert [e.asked for e in router.engines] == [0, 0]


def test_allow_names_the_method(router: Router) -> None:
    with Wire(router.address) as wire:
        wire.send(request("GET", CHAT))
        assert wire.reply(method="GET").headers["allow"] == "POST"


def test_health_is_served_after_all_that(router: Router) -> None:
    with Wire(router.address) as wire:
        wire.send(request("POST", CHAT, b'{"messages":[]}'))
        assert wire.reply().status == 200


def _assert_openai_error(answer: Reply, case: Case) -> None:
    assert answer.headers["content-type"].startswith("application/json")
    payload = answer.json
    assert set(payload) == {"error"}
    error = payload["error"]
    assert set(error) == {"message", "type", "code", "param"}
    assert isinstance(error["message"], str)
    assert len(error["message"]) >= 10
    assert error["type"] == "invalid_request_error"
    assert error["code"] is None or isinstance(error["code"], str)
    if case.param is not None:
        assert error["param"] == case.param
    if case.code is not None:
        assert error["code"] == case.code
    for words in case.says:
        assert words in error["message"]
    # The answer says what is wrong, and repeats no great part of what was sent.
    assert len(answer.body) < 2_000
