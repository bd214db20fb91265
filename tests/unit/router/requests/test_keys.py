"""Client keys at the door: who gets in, at what rate, and that no key goes any further."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from tests.unit.router.asking import CHAT, CHAT_PATH, count, error_of
from tests.unit.router.certificates import aged
from tests.unit.router.conftest import Lab, RunningRouter

from plait.router.body import Route
from plait.router.key_lines import digest_of
from plait.telemetry import metrics as names

A, B = "sk-blue-0123456789", "sk-green-0123456789"


def line(name: str, key: str, *more: str) -> str:
    return " ".join((name, f"sha256:{digest_of(key.encode()).hex()}", *more)) + "\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(line("blue", A) + line("green", B, "rate=1/min", "burst=2"))
    return aged(path)


@pytest.fixture
async def router(lab: Lab, file: Path) -> RunningRouter:
    return await lab.router(api_keys=[str(file)], admin_port=65_000, engine_api_key="engine-key")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("headers", [{}, bearer("wrong"), bearer(""), {"authorization": f"Basic {A}"}])
@pytest.mark.parametrize("path", [*Route, "/v1/models", "/v1/models/tiny"])
async def test_nobody_gets_in_without_a_key(
    router: RunningRouter, path: str, headers: dict[str, str]
) -> None:
    method = "GET" if path.startswith("/v1/models") else "POST"
    body = CHAT if method == "POST" else None
    async with router.http.request(method, router.url + path, json=body, headers=headers) as response:
        assert response.status == 401
        assert response.headers["www-authenticate"] == "Bearer"
        error = error_of(await response.read())
    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
    assert not router.prefill.seen
    if method == "POST":
        assert count(router, names.REQUESTS, path, "unauthorized") == 1


@pytest.mark.parametrize("headers", [bearer(A), {"x-api-key": A}, {"authorization": f"bearer {A}"}])
async def test_key_gets_in_and_no_further(router: RunningRouter, headers: dict[str, str]) -> None:
    code, _ = await router.post(CHAT_PATH, CHAT, headers=headers)
    assert code == 200
    for engine in router.engines:
        (seen,) = engine.seen
        sent = {name.lower(): value for name, value in seen.headers.items()}
        assert sent["authorization"] == "Bearer engine-key"
        assert A not in str(seen)
    async with router.http.get(router.url + "/v1/models", headers=headers) as response:
        assert response.status == 200


async def test_key_over_its_rate(router: RunningRouter) -> None:
    assert [(await router.post(CHAT_PATH, CHAT, headers=bearer(B)))[0] for _ in range(2)] == [200, 200]
    async with router.http.post(router.url + CHAT_PATH, json=CHAT, headers=bearer(B)) as response:
        assert response.status == 429
        assert 1 <= int(response.headers["retry-after"]) <= 60
        error = error_of(await response.read())
    assert error["code"] == "rate_limit_exceeded"
    assert "green" in error["message"]
    async with router.http.get(router.url + "/v1/models", headers=bearer(B)) as response:
        assert response.status == 429
    assert count(router, names.REQUESTS, CHAT_PATH, "rate_limited") == 1
    # Nobody else is held up.
    assert (await router.post(CHAT_PATH, CHAT, headers=bearer(A)))[0] == 200
    assert len(router.prefill.seen) == 3


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_probes_need_no_key(router: RunningRouter, path: str) -> None:
    async with router.http.get(router.url + path) as response:
        assert response.status == 200


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/groups", "/api/v1/workers"])
async def test_figures_are_not_on_the_open_port(router: RunningRouter, path: str) -> None:
    async with router.http.get(router.url + path, headers=bearer(A)) as response:
        assert response.status == 404


async def test_keys_change_under_a_running_router(router: RunningRouter, file: Path) -> None:
    file.write_text(line("blue", "another"))
    aged(file)
    async with asyncio.timeout(10):
        while (await router.post(CHAT_PATH, CHAT, headers=bearer(A)))[0] == 200:
            await asyncio.sleep(0.05)
    assert (await router.post(CHAT_PATH, CHAT, headers=bearer(A)))[0] == 401
    assert (await router.post(CHAT_PATH, CHAT, headers=bearer("another")))[0] == 200


async def test_refused_request_leaves_the_connection_usable(router: RunningRouter) -> None:
    """The body of a request that is refused for its head is read past."""
    body = b'{"messages": [], "padding": "%b"}' % (b"x" * 20_000)
    request = b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n"
    host, port = router.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.closing(writer):
        for key, status in ((b"", b"401"), (b"authorization: Bearer %b\r\n" % A.encode(), b"200")):
            writer.write(request % (CHAT_PATH.encode(), key, len(body)) + body[:7])
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(body[7:])
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert head.startswith(b"HTTP/1.1 " + status)
            length = next(n for n in head.lower().split(b"\r\n") if n.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))


async def test_no_key_and_no_prompt_in_any_log(
    router: RunningRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    prompt = {"messages": [{"role": "user", "content": "my secret"}]}
    await router.post(CHAT_PATH, prompt, headers=bearer(A))
    await router.post(CHAT_PATH, prompt, headers=bearer("sk-wrong"))
    await router.decode.stop()
    await router.post(CHAT_PATH, prompt, headers=bearer(A))
    ours = "\n".join(r.getMessage() + str(r.exc_text) for r in caplog.records if r.name.startswith("plait"))
    assert ours
    for word in (A, "sk-wrong", "my secret", "engine-key"):
        assert word not in ours
