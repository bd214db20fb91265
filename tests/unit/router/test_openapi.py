"""The OpenAPI that `describe` makes."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from pydantic import BaseModel

from plait.router.body import Route
from plait.router.errors import bad_request
from plait.router.openapi import describe


class Thing(BaseModel):
    name: str


def _made(*, prompts: bool = True, keys: bool = False) -> dict[str, Any]:
    app = FastAPI(title="x", version="1")

    @app.get("/v1/things/{name}")
    async def thing(name: str) -> Thing:
        return Thing(name=name)

    @app.get("/health", responses={503: {"description": "own"}, 404: {"description": "own"}})
    async def health() -> None: ...

    describe(app, prompts=prompts, keys=keys)
    return app.openapi()


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("prompts", [False, True])
def test_it_is_valid(prompts: bool, keys: bool) -> None:
    schemathesis.openapi.from_dict(_made(prompts=prompts, keys=keys)).validate()


def test_prompts_are_in_it_only_where_they_are_served() -> None:
    assert set(_made()["paths"]) - set(_made(prompts=False)["paths"]) == {str(route) for route in Route}


def test_a_prompt_may_be_anything_more_than_is_named() -> None:
    for route in Route:
        body = _made()["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body["type"] == "object"
        assert body["additionalProperties"] is True


def test_operation_ids_differ() -> None:
    ids = [op["operationId"] for methods in _made()["paths"].values() for op in methods.values()]
    assert len(set(ids)) == len(ids)


def test_errors_have_the_form_that_the_router_sends() -> None:
    schema = _made()
    sent = bad_request("no", param="n").payload()
    form = schema["components"]["schemas"]["Error"]
    assert set(form["properties"]) == set(sent)
    assert set(form["properties"]["error"]["properties"]) == set(sent["error"])
    for status in ("400", "413", "429", "503"):
        answer = schema["paths"][Route.CHAT]["post"]["responses"][status]
        assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}
    assert "Retry-After" in schema["paths"][Route.CHAT]["post"]["responses"]["429"]["headers"]


def test_what_a_route_says_itself_stays_and_the_guess_of_fastapi_goes() -> None:
    paths = _made()["paths"]
    assert paths["/health"]["get"]["responses"]["404"]["description"] == "own"
    assert "422" not in paths["/v1/things/{name}"]["get"]["responses"]
    assert "404" in paths["/v1/things/{name}"]["get"]["responses"]
    assert "HTTPValidationError" not in _made()["components"]["schemas"]


def test_keys_are_asked_for_on_clients_routes_only() -> None:
    paths = _made(keys=True)["paths"]
    asking = {path for path, methods in paths.items() if any("security" in op for op in methods.values())}
    assert asking == {*map(str, Route), "/v1/things/{name}"}
    assert all("401" in op["responses"] for path in asking for op in paths[path].values())
    assert "securitySchemes" not in _made(keys=False)["components"]


def test_it_is_made_once() -> None:
    app = FastAPI(title="x", version="1")
    describe(app, prompts=True, keys=True)
    assert app.openapi() is app.openapi()
