"""The whole app as clients see it: the official OpenAI client, and errors in its form on every path."""

from __future__ import annotations

import json

import openai
import pytest
from tests.unit.router.conftest import Lab, RunningRouter
from tests.unit.router.stub_engine import chat_events, status, streams, wait_for_ever

from plait.router.body import Route

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(router: RunningRouter) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=router.url + "/v1", api_key="k", max_retries=0)


async def test_openai_chat(client: openai.AsyncOpenAI) -> None:
    async with client:
        whole = await client.chat.completions.create(model="tiny", messages=MESSAGES)  # type: ignore[call-overload]
        assert whole.choices[0].message.content == "a b"
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)  # type: ignore[call-overload]
        text = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(text) == "Hello"


async def test_openai_completion(client: openai.AsyncOpenAI) -> None:
    async with client:
        whole = await client.completions.create(model="tiny", prompt="x")
        assert whole.choices[0].text == "a b"
        stream = await client.completions.create(model="tiny", prompt="x", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "a b"


async def test_openai_models(client: openai.AsyncOpenAI) -> None:
    async with client:
        assert [m.id for m in (await client.models.list()).data] == ["tiny"]


async def test_openai_client_reads_our_errors(client: openai.AsyncOpenAI, router: RunningRouter) -> None:
    router.prefill.behave, router.decode.behave = status(400, "prompt is too long"), wait_for_ever
    async with client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="tiny", messages=MESSAGES)  # type: ignore[call-overload]
        assert refused.value.body["message"] == "prompt is too long"  # type: ignore[index]
        with pytest.raises(openai.BadRequestError) as samples:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, n=0)  # type: ignore[call-overload]
        assert samples.value.param == "n"


async def test_openai_client_notices_a_broken_stream(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    router.decode.behave = streams(chat_events(["Hel"])[:2], then="die")
    async with client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)  # type: ignore[call-overload]
        text: list[str] = []

        async def read() -> None:
            async for chunk in stream:
                text.append(chunk.choices[0].delta.content)

        with pytest.raises(openai.APIError, match="closed the connection before its answer was complete"):
            await read()
        assert text[-1] == "Hel"


@pytest.mark.parametrize(
    ("method", "path", "code", "name"),
    [
        ("POST", "/v1/embeddings", 404, "unknown_route"),
        ("POST", "/abort_request", 404, "unknown_route"),
        ("POST", "/v1/chat/completions/", 404, "unknown_route"),
        ("POST", "/flush_cache", 404, "unknown_route"),
        ("GET", "/plait/status", 404, "unknown_route"),
        ("GET", "/api/v1/workers", 404, "unknown_route"),
        ("GET", "/", 404, "unknown_route"),
        ("GET", "/v1/chat/completions", 405, "wrong_method"),
        ("POST", "/v1/models", 405, "wrong_method"),
    ],
)
async def test_other_routes(router: RunningRouter, method: str, path: str, code: int, name: str) -> None:
    async with router.http.request(method, router.url + path, json={}) as response:
        assert response.status == code
        error = json.loads(await response.read())["error"]
    assert error["code"] == name
    assert path in error["message"]
    assert not router.prefill.seen


async def test_wrong_method_says_which_is_right(router: RunningRouter) -> None:
    async with router.http.get(router.url + "/v1/chat/completions") as response:
        assert response.headers["allow"] == "POST"


async def test_admin_port_takes_the_figures_away_from_clients(lab: Lab) -> None:
    router = await lab.router(admin_port=65_000)
    for path in ("/metrics", "/api/v1/cache", "/openapi.json"):
        async with router.http.get(router.url + path) as response:
            assert response.status == (200 if path == "/openapi.json" else 404)
        async with router.http.get(router.admin_url + path) as response:
            assert response.status == 200
    async with router.http.get(router.url + "/ready") as response:
        assert response.status == 200
    async with router.http.post(router.admin_url + "/generate", json={}) as response:
        assert response.status == 404


async def test_openapi_of_each_port_lists_what_it_serves(router: RunningRouter) -> None:
    figures = {"/api/v1/groups", "/api/v1/cache", "/api/v1/transfers", "/ready", "/health"}
    prompts = {str(route) for route in Route} | {"/v1/models"}
    admin = {"/api/v1/workers", "/api/v1/workers/drain", "/api/v1/workers/undrain"}
    for url, there, missing in (
        (router.url, figures | prompts, admin),
        (router.admin_url, figures | admin, prompts),
    ):
        async with router.http.get(url + "/openapi.json") as response:
            paths = set(json.loads(await response.read())["paths"])
        assert there <= paths
        assert not missing & paths


async def test_fault_of_the_router_has_the_form_too(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router.state.workers, "refresh", lambda: 1 / 0)
    async with router.http.get(router.url + "/api/v1/cache") as response:
        assert response.status == 500
        assert json.loads(await response.read())["error"]["code"] == "router_fault"
