"""Answers that are no success."""

from __future__ import annotations

import json

import pytest

from plait_operator.apply.errors import api_error


def test_the_servers_own_words_are_kept() -> None:
    body = json.dumps({"reason": "Forbidden", "message": "exceeded quota:\n gpus"}).encode()
    error = api_error(403, body, None)
    assert (error.status, error.reason, error.message) == (403, "Forbidden", "exceeded quota: gpus")
    assert str(error) == "403 Forbidden: exceeded quota: gpus"


@pytest.mark.parametrize("body", [b"", b"<html>no</html>", b"[]", b"null"])
def test_an_answer_without_words_is_still_an_error(body: bytes) -> None:
    assert api_error(502, body, None).message


@pytest.mark.parametrize(
    ("status", "passing"),
    [(400, False), (403, False), (409, False), (422, False), (429, True), (500, True), (503, True)],
)
def test_which_may_pass_a_moment_later(status: int, passing: bool) -> None:
    assert api_error(status, b"{}", None).passing is passing


@pytest.mark.parametrize(
    ("told", "seconds"), [("3", 3.0), (None, 0.0), ("", 0.0), ("soon", 1.0), ("-4", 0.0)]
)
def test_how_long_it_asks_to_wait(told: str | None, seconds: float) -> None:
    assert api_error(429, b"{}", told).retry_after == seconds


def test_a_long_message_is_cut() -> None:
    assert len(api_error(422, json.dumps({"message": "x" * 9000}).encode(), None).message) == 600


@pytest.mark.parametrize(
    ("details", "ending"),
    [
        ({"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}, True),
        ({"causes": [{"reason": "FieldValueInvalid"}]}, False),
        ({"causes": None}, False),
        (None, False),
    ],
)
def test_a_namespace_that_goes_is_told_apart(details: object, ending: bool) -> None:
    body = {"reason": "Forbidden", "message": "it is being terminated", "details": details}
    error = api_error(403, json.dumps(body).encode(), None)
    assert error.ending is ending
    assert str(error) == "403 Forbidden: it is being terminated"


@pytest.mark.parametrize("details", [[], "x", {"causes": [1]}, {"causes": 3}])
def test_details_that_are_none_lose_nothing(details: object) -> None:
    body = {"reason": "Forbidden", "message": "no", "details": details}
    error = api_error(403, json.dumps(body).encode(), None)
    assert (error.ending, error.message) == (False, "no")
