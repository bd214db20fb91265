"""The two questions to the API server: what is sent, and what each kind of answer becomes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.router.discovery.kubernetes.conftest import until
from tests.unit.router.discovery.kubernetes.fake_apiserver import FakeApiServer, pod

from plait.router.discovery.kubernetes.access import Access
from plait.router.discovery.kubernetes.api import PodsApi
from plait.router.discovery.kubernetes.cache import Event
from plait.router.discovery.kubernetes.errors import ApiError, CutError, GoneError, UnreachableError

SELECTOR = "plait.dev/role in (prefill,decode)"


@contextlib.asynccontextmanager
async def opened(server: FakeApiServer, **more: float | Path | str) -> AsyncIterator[PodsApi]:
    token, ca = more.get("token"), more.get("ca")
    access = Access(
        str(more.get("url", server.url)),
        "pool",
        token if isinstance(token, Path) else None,
        ca if isinstance(ca, Path) else None,
    )
    api = PodsApi(access, selector=SELECTOR, timeout=float(str(more.get("timeout", 10))))
    try:
        yield api
    finally:
        await api.reset()


def name(thing: object) -> str:
    assert isinstance(thing, dict)
    return str(thing["metadata"]["name"])


async def events(api: PodsApi, version: str, seconds: int = 1) -> list[Event]:
    return [e async for batch in api.watch_pods(version, seconds=seconds, began=lambda: None) for e in batch]


async def test_a_list_comes_in_pages_and_is_reduced(server: FakeApiServer) -> None:
    server.page = 2
    for number in range(5):
        server.put(pod(f"p{number}"))
    server.put(pod("other", "router"))
    async with opened(server) as api:
        found = await api.list_pods(name)
    assert found == ([f"p{n}" for n in range(5)], str(server.version))
    assert [r.get("continue") for r in server.requests] == [
        None,
        f"2@{server.version}",
        f"4@{server.version}",
    ]
    assert all(r["labelSelector"] == SELECTOR and int(r["limit"]) <= 500 for r in server.requests)
    # Nothing older than the question will do.
    assert all("resourceVersion" not in r for r in server.requests)


async def test_a_page_that_is_gone_is_gone(server: FakeApiServer) -> None:
    server.page = 1
    for number in range(3):
        server.put(pod(f"p{number}"))

    def keep(thing: object) -> str:
        server.put(pod("new"))
        server.compact()
        return name(thing)

    async with opened(server) as api:
        with pytest.raises(GoneError, match="too old"):
            await api.list_pods(keep)


async def test_a_watch_tells_what_came_after_and_ends_in_time(server: FakeApiServer) -> None:
    server.put(pod("before"))
    start = str(server.version)
    server.put(pod("a"))
    server.put(pod("other", "router"))
    server.bookmark()
    async with opened(server) as api:
        found = await events(api, start)
    assert [(e.kind, e.version) for e in found] == [("ADDED", "102"), ("BOOKMARK", "104")]
    assert name(found[0].object) == "a"
    assert server.watches == [
        {
            "watch": "1",
            "labelSelector": SELECTOR,
            "allowWatchBookmarks": "true",
            "resourceVersion": "101",
            "timeoutSeconds": "1",
        }
    ]


@pytest.mark.parametrize("by_status", [True, False])
async def test_an_old_version_is_gone(server: FakeApiServer, by_status: bool) -> None:
    server.gone_by_status = by_status
    server.put(pod("a"))
    server.compact()
    async with opened(server) as api:
        with pytest.raises(GoneError, match="too old resource version"):
            await events(api, "1")


async def test_events_before_an_error_are_told(server: FakeApiServer) -> None:
    good = {"type": "ADDED", "object": {**pod("a"), "metadata": {"name": "a", "resourceVersion": "5"}}}
    bad = {"type": "ERROR", "object": {"code": 500, "message": "etcd went away"}}
    found: list[Event] = []
    async with opened(server) as api:

        async def follow() -> None:
            async for batch in api.watch_pods("100", seconds=30, began=lambda: None):
                found.extend(batch)

        task = asyncio.create_task(follow())
        await until(lambda: server.watching == 1)
        server.send(b"".join(json.dumps(e).encode() + b"\n" for e in (good, bad, good)))
        with pytest.raises(ApiError, match="etcd went away"):
            await task
    assert [e.version for e in found] == ["5"]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"<html>\n", "no JSON object"),
        (b"[1]\n", "no JSON object"),
        (b'{"type": "RENAMED", "object": {"metadata": {"resourceVersion": "1"}}}\n', "'RENAMED'"),
        (b'{"type": "ADDED", "object": {"metadata": {}}}\n', "means nothing"),
        (b'{"type": "ADDED"}\n', "means nothing"),
        (b'{"type": ["ADDED"], "object": {"metadata": {"resourceVersion": "1"}}}\n', "means nothing"),
        (b"x" * (9 << 20), "a line of over"),
    ],
)
async def test_streams_of_garbage_are_errors(server: FakeApiServer, raw: bytes, said: str) -> None:
    async with opened(server) as api:
        task = asyncio.create_task(events(api, "100", 30))
        await until(lambda: server.watching == 1)
        server.send(raw)
        with pytest.raises(ApiError, match=said) as caught:
            await task
    assert not isinstance(caught.value, UnreachableError), "where the watch was is in doubt"


async def test_a_broken_connection_is_a_cut(server: FakeApiServer) -> None:
    async with opened(server) as api:
        task = asyncio.create_task(events(api, "100", 30))
        await until(lambda: server.watching == 1)
        server.cut()
        with pytest.raises(CutError, match="broke"):
            await task


async def test_half_a_line_at_the_end_is_dropped(server: FakeApiServer) -> None:
    """The server ended the watch in time; what it had begun to say comes again in the next."""
    async with opened(server) as api:
        task = asyncio.create_task(events(api, "100", 1))
        await until(lambda: server.watching == 1)
        server.send(b'{"type": "ADDED", "obj')
        assert await task == []


async def test_no_answer_is_an_error_in_time(server: FakeApiServer) -> None:
    silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(60), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with silent, opened(server, url=url, timeout=0.2) as api:
        with pytest.raises(UnreachableError, match=r"list pods at .*: no answer within 0.2 s"):
            await api.list_pods(name)
        with pytest.raises(UnreachableError, match=r"watch pods at .*: no answer within 0.2 s"):
            await events(api, "1")


async def test_a_closed_port_is_an_error(server: FakeApiServer) -> None:
    await server.stop()
    async with opened(server) as api:
        for question in (api.list_pods(name), events(api, "1")):
            with pytest.raises(UnreachableError, match=r"pods at http://127\.0\.0\.1"):
                await question


@pytest.mark.parametrize(
    ("status", "body"), [(200, '{"items": {}}'), (200, "<html>"), (200, '{"items": []}'), (302, "{}")]
)
async def test_what_is_no_api_server_is_told(server: FakeApiServer, status: int, body: str) -> None:
    server.headers = {"location": "http://127.0.0.1:9/"}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status} x\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())

    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
    async with other, opened(server, url=url) as api:
        with pytest.raises(ApiError, match=r"Kubernetes API server\?|status 302"):
            await api.list_pods(name)


async def test_the_token_is_read_for_each_request(server: FakeApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    async with opened(server, token=token) as api:
        for text in ("first", "second"):
            token.write_text(text)
            await api.list_pods(name)
        token.unlink()
        with pytest.raises(ApiError, match=r"token file .* cannot be used"):
            await api.list_pods(name)
    assert server.authorizations == ["Bearer first", "Bearer second"]


async def test_a_ca_file_that_is_none_is_named(server: FakeApiServer, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")
    url = server.url.replace("http:", "https:")
    async with opened(server, ca=tmp_path / "ca.crt", url=url) as api:
        with pytest.raises(ApiError, match=r"CA file .*ca.crt cannot be used"):
            await api.list_pods(name)


async def test_a_server_that_the_ca_does_not_know_is_not_spoken_to(
    server: FakeApiServer, tmp_path: Path
) -> None:
    ours, theirs = _certificate(tmp_path, "ours"), _certificate(tmp_path, "theirs")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(theirs, tmp_path / "theirs.key")
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        body = b'{"metadata": {"resourceVersion": "1"}, "items": null}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    secure = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{secure.sockets[0].getsockname()[1]}"
    async with secure, opened(server, url=url, ca=ours) as api:
        with pytest.raises(UnreachableError, match="certificate"):
            await api.list_pods(name)
        assert not seen
        # The cluster's CA was renewed: after a reset it is read again.
        ours.write_bytes(theirs.read_bytes())
        await api.reset()
        assert await api.list_pods(name) == ([], "1")


def _certificate(folder: Path, called: str) -> Path:
    """A self-signed certificate for 127.0.0.1 and its key, as files."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, called)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / f"{called}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    file = folder / f"{called}.crt"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return file
