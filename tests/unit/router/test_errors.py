"""The OpenAI error form."""

from __future__ import annotations

import json

from plait.router.errors import RouterError, bad_request


def test_form_is_openais() -> None:
    error = RouterError(404, "no such route", code="unknown_route", param="path")
    assert json.loads(error.body()) == {
        "error": {
            "message": "no such route",
            "type": "invalid_request_error",
            "code": "unknown_route",
            "param": "path",
        }
    }


def test_type_follows_the_status_unless_given() -> None:
    assert RouterError(499, "x").type == "invalid_request_error"
    assert RouterError(500, "x").type == "server_error"
    assert RouterError(400, "x", type="BadRequest").type == "BadRequest"


def test_bad_request_names_its_field() -> None:
    error = bad_request("no", param="n")
    assert (error.status, error.param) == (400, "n")
