"""TLS on both sides of a running router: clients who are let in, engines that are believed."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest
from tests.unit.router.asking import CHAT, CHAT_PATH, STREAMED, error_of, failures
from tests.unit.router.certificates import Client, Files, Made, client_context, make
from tests.unit.router.conftest import Lab, RunningRouter
from tests.unit.router.stub_engine import chat_events, streams


@pytest.fixture(scope="module")
def authority() -> Made:
    return make("authority", authority=True)


def server_context(files: Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context


async def with_tls(lab: Lab, folder: Path, made: Made, **settings: object) -> tuple[RunningRouter, Files]:
    files = Files(folder, made)
    router = await lab.router(tls_certificate=str(files.certificate), tls_key=str(files.key), **settings)
    return router, files


async def test_clients_speak_tls(lab: Lab, tmp_path: Path, authority: Made) -> None:
    router, _ = await with_tls(lab, tmp_path, make("one", signer=authority))
    assert router.url.startswith("https://")
    events = chat_events(["a", "b"])
    router.decode.behave = streams(events)
    trust = client_context(authority)
    for _ in range(2):
        code, body = await router.post(CHAT_PATH, STREAMED, ssl=trust)
        assert (code, body) == (200, b"".join(events))
    assert len(router.clients.server_state.connections) == 1
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await router.post(CHAT_PATH, CHAT, ssl=client_context(make("stranger", authority=True)))
    # Admin's port is another one, and speaks HTTP.
    async with router.http.get(router.admin_url + "/health") as response:
        assert response.status == 200


async def test_plain_http_is_no_way_in(lab: Lab, tmp_path: Path, authority: Made) -> None:
    router, _ = await with_tls(lab, tmp_path, make("one", signer=authority))
    with pytest.raises(aiohttp.ClientError):
        async with router.http.post(router.url.replace("https", "http") + CHAT_PATH, json=CHAT):
            pytest.fail("it was let in")
    assert not router.prefill.seen


async def test_renewed_certificate_is_shown_to_new_connections(
    lab: Lab, tmp_path: Path, authority: Made
) -> None:
    router, files = await with_tls(lab, tmp_path, make("one", signer=authority))
    trust = client_context(authority)
    assert (await router.post(CHAT_PATH, CHAT, ssl=trust))[0] == 200
    files.put(make("two", signer=authority))
    assert router.clients.certificate is not None
    assert router.clients.certificate.poll()
    port = int(router.url.rsplit(":", 1)[1])

    def name() -> str:
        with Client(port, trust) as client:
            return client.server_name

    assert await asyncio.to_thread(name) == "two"
    # Those that are open go on.
    assert (await router.post(CHAT_PATH, CHAT, ssl=trust))[0] == 200


async def test_only_certified_clients_get_in(lab: Lab, tmp_path: Path, authority: Made) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.pem)
    router, _ = await with_tls(lab, tmp_path, make("one", signer=authority), tls_client_ca=str(ca))
    (tmp_path / "own").mkdir()
    own = Files(tmp_path / "own", make("client", signer=authority))
    known = client_context(authority, own=(own.certificate, own.key))
    assert (await router.post(CHAT_PATH, CHAT, ssl=known))[0] == 200
    with pytest.raises(aiohttp.ClientError):
        await router.post(CHAT_PATH, CHAT, ssl=client_context(authority))
    assert len(router.prefill.seen) == 1


@pytest.mark.parametrize("how", ["authority", "insecure"])
async def test_engines_by_https(lab: Lab, tmp_path: Path, authority: Made, how: str) -> None:
    context = server_context(Files(tmp_path, make("engine", signer=authority)))
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.pem)
    engines = [await lab.engine(side, tls=context) for side in ("prefill", "decode")]
    trust = {"engine_ca": str(ca)} if how == "authority" else {"engine_insecure": True}
    router = await lab.router(*engines, **trust)
    for body in (CHAT, STREAMED):
        assert (await router.post(CHAT_PATH, body))[0] == 200
    await router.until_idle()
    assert engines[0].prompts[0]["bootstrap_host"] == "127.0.0.1"
    assert len(engines[1].peers) == 1


async def test_engine_that_nobody_vouches_for_gets_nothing(lab: Lab, tmp_path: Path, authority: Made) -> None:
    context = server_context(Files(tmp_path, make("engine", signer=authority)))
    engines = [await lab.engine("prefill"), await lab.engine("decode", tls=context)]
    router = await lab.router(*engines, ready=False)
    reason = lambda: router.state.workers.reasons()[engines[1].url]  # noqa: E731
    await router.until(lambda: "CERTIFICATE_VERIFY_FAILED" in reason())
    code, body = await router.post(CHAT_PATH, CHAT)
    assert code == 503
    assert error_of(body)["code"] == "no_pair"
    assert not engines[1].seen
    assert failures(router, engines[1], "refused") == 0
