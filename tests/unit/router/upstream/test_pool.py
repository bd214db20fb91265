"""A pool: connections kept and used again while that is safe, and none left behind."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.unit.router.certificates import Files, Made, make
from tests.unit.router.raw_server import OK, Line, RawServer, raw_server

from plait.router.engine_tls import EngineTrust
from plait.router.upstream import pool as module
from plait.router.upstream.connection import Fault, Headers
from plait.router.upstream.pool import Pool, Sending

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Answer:
    """A receiver whose end can be waited for."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.fault: Fault | None = None
        self.message = ""
        self.over = asyncio.Event()

    def on_head(self, status: int, headers: Headers) -> None:
        self.status = status

    def on_data(self, data: bytes) -> None:
        self.body += data

    def on_end(self) -> None:
        self.over.set()

    def on_failed(self, fault: Fault, message: str) -> None:
        self.fault, self.message = fault, message
        self.over.set()


def sent(pool: Pool, *, fresh: bool = False) -> tuple[Answer, Sending]:
    answer = Answer()
    return answer, pool.send([GET], answer, fresh=fresh)


async def ask(pool: Pool, *, fresh: bool = False) -> Answer:
    """One request to its end."""
    answer, _ = sent(pool, fresh=fresh)
    await asyncio.wait_for(answer.over.wait(), 10)
    return answer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def pool_of(server: RawServer) -> AsyncIterator[Pool]:
    pool = Pool(server.url, connect_seconds=10.0)
    try:
        yield pool
    finally:
        await pool.close()
        await until(lambda: not pool.connections)


# --- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "host", "port", "authority"),
    [
        ("http://10.0.0.1:30000", "10.0.0.1", 30000, b"10.0.0.1:30000"),
        ("http://engine", "engine", 80, b"engine"),
        ("https://engine", "engine", 443, b"engine"),
        ("http://[fd00::1]:3", "fd00::1", 3, b"[fd00::1]:3"),
    ],
)
async def test_address_is_the_urls(url: str, host: str, port: int, authority: bytes) -> None:
    pool = Pool(url, connect_seconds=1.0)
    assert (pool.host, pool.port, pool.authority) == (host, port, authority)


# --- kept and used again -----------------------------------------------------------------------------------


async def test_ten_requests_in_turn_use_one_connection() -> None:
    opened: list[float] = []
    async with raw_server() as server:
        pool = Pool(server.url, connect_seconds=10.0, connected=opened.append)
        for _ in range(10):
            answer = await ask(pool)
            assert (answer.status, answer.body) == (200, b"{}")
        assert len(server.lines) == len(opened) == pool.connections == 1
        assert 0 <= opened[0] < 10
        await pool.close()


async def test_requests_at_once_have_a_connection_each_and_the_last_returned_is_taken_first() -> None:
    async with raw_server() as server, pool_of(server) as pool:
        answers = [sent(pool)[0] for _ in range(3)]
        for answer in answers:
            await asyncio.wait_for(answer.over.wait(), 10)
        assert len(server.lines) == pool.connections == 3
        last = pool._idle[-1]
        await ask(pool)
        assert pool._idle[-1] is last
        assert last.served == 2


async def test_connections_to_engines_wait_for_nothing() -> None:
    """TCP_NODELAY: a small request must not wait for the acknowledgement of the one before."""
    async with raw_server() as server, pool_of(server) as pool:
        await ask(pool)
        sock = pool._idle[0].transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_fresh_asks_for_a_new_one() -> None:
    async with raw_server() as server, pool_of(server) as pool:
        await ask(pool)
        await ask(pool, fresh=True)
        assert len(server.lines) == 2


async def test_connection_that_was_idle_for_too_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_server() as server, pool_of(server) as pool:
        await ask(pool)
        pool._idle[0].idle_since -= module.KEEP_SECONDS + 0.1
        await ask(pool)
        assert len(server.lines) == 2
        await until(lambda: server.ended == 1)
        assert pool.connections == 1


async def test_sweep_closes_what_was_idle_for_too_long_and_no_other() -> None:
    async with raw_server() as server, pool_of(server) as pool:
        await asyncio.gather(*(sent(pool)[0].over.wait() for _ in range(3)))
        await until(lambda: len(pool._idle) == 3)
        pool.sweep()
        assert len(pool._idle) == 3
        for connection in pool._idle[:2]:
            connection.idle_since -= module.KEEP_SECONDS + 0.1
        pool.sweep()
        assert len(pool._idle) == 1
        await until(lambda: pool.connections == 1)


async def test_drop_idle_leaves_what_is_under_way() -> None:
    go_on = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        if line.number == 2:
            await go_on.wait()
        await line.send(OK)
        await line.reader.read()

    async with raw_server(script) as server, pool_of(server) as pool:
        await ask(pool)
        slow, _ = sent(pool, fresh=True)
        await until(lambda: len(server.lines) == 2)
        pool.drop_idle()
        await until(lambda: pool.connections == 1)
        go_on.set()
        await asyncio.wait_for(slow.over.wait(), 10)
        assert slow.body == b"{}"


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno", b"garbage"])
async def test_bytes_after_an_answer_close_its_connection(extra: bytes) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.send(OK)
        if line.number == 1:
            await line.send(extra)
        while True:
            await line.request()
            await line.send(OK)

    async with raw_server(script) as server, pool_of(server) as pool:
        assert (await ask(pool)).body == b"{}"
        await until(lambda: server.ended == 1)
        assert (await ask(pool)).body == b"{}"
        assert len(server.lines) == 2


async def test_engine_that_closes_a_kept_connection_is_noticed() -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.send(OK)

    async with raw_server(script) as server, pool_of(server) as pool:
        for number in (1, 2):
            assert (await ask(pool)).body == b"{}"
            assert len(server.lines) == number
            await until(lambda: not pool.connections)


async def test_kept_connection_that_closes_under_a_request_is_stale() -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.send(OK)
        await line.request()

    async with raw_server(script) as server, pool_of(server) as pool:
        await ask(pool)
        answer = await ask(pool)
        assert answer.fault is Fault.STALE
        # Which a fresh connection, whose first answer breaks, never is.
        assert (await ask(pool, fresh=True)).body == b"{}"


async def test_answer_without_a_length_ends_with_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.send(b"HTTP/1.1 200 OK\r\n\r\nhello")

    async with raw_server(script) as server, pool_of(server) as pool:
        answer = await ask(pool)
        assert (answer.body, answer.fault) == (b"hello", None)
    assert not caplog.records, "the loop has no word for a protocol that it can work with"


async def test_large_request_to_a_slow_engine_arrives_whole(caplog: pytest.LogCaptureFixture) -> None:
    body, got, go_on = b"x" * (8 << 20), [], asyncio.Event()

    async def script(line: Line) -> None:
        await go_on.wait()
        got.append(await line.request())
        await line.send(OK)

    async with raw_server(script) as server, pool_of(server) as pool:
        answer = Answer()
        pool.send([b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body), body], answer)
        await until(lambda: bool(server.lines))
        await asyncio.sleep(0.05)
        go_on.set()
        await asyncio.wait_for(answer.over.wait(), 10)
        assert (answer.body, answer.fault) == (b"{}", None)
    assert got[0][1] == body
    assert not caplog.records


# --- no connection -----------------------------------------------------------------------------------------


async def test_refused() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        pool = Pool(f"http://127.0.0.1:{closed.getsockname()[1]}", connect_seconds=10.0)
        answer = await ask(pool)
    assert answer.fault is Fault.REFUSED
    assert "refused the connection" in answer.message
    assert not pool.connections


async def test_name_that_does_not_resolve() -> None:
    answer = await ask(Pool("http://no-such-host.invalid:1", connect_seconds=10.0))
    assert answer.fault is Fault.REFUSED


async def test_engine_that_takes_no_connection_is_given_up() -> None:
    # A listener whose queue is full: connects are neither taken nor refused.
    with socket.socket() as full, contextlib.ExitStack() as held:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        pool = Pool(f"http://127.0.0.1:{full.getsockname()[1]}", connect_seconds=0.2)
        answer = await ask(pool)
    assert answer.fault is Fault.REFUSED
    assert "within 0.2 s" in answer.message


async def test_engine_that_closes_at_once_is_broken() -> None:
    async def script(line: Line) -> None:
        return

    async with raw_server(script) as server, pool_of(server) as pool:
        assert (await ask(pool)).fault is Fault.BROKEN


# --- withdrawn, and closed ---------------------------------------------------------------------------------


async def test_withdrawn_request_closes_its_connection_and_is_heard_of_no_more() -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.reader.read()

    async with raw_server(script) as server, pool_of(server) as pool:
        answer, sending = sent(pool)
        await until(lambda: bool(server.lines))
        sending.withdraw()
        await until(lambda: server.ended == 1 and not pool.connections)
        assert not answer.over.is_set()


async def test_request_that_is_withdrawn_while_it_connects_leaves_nothing() -> None:
    async with raw_server() as server, pool_of(server) as pool:
        answer, sending = sent(pool)
        sending.withdraw()
        later, second = sent(pool)
        # One that is about to connect, at whatever point that is.
        for _ in range(3):
            await asyncio.sleep(0)
        second.withdraw()
        await until(lambda: not pool._connecting and not pool.connections)
        await until(lambda: server.ended == len(server.lines))
        assert not answer.over.is_set()
        assert not later.over.is_set()


async def test_close_ends_all_under_way_or_not() -> None:
    async def script(line: Line) -> None:
        await line.request()
        if line.number == 1:
            await line.send(OK)
        await line.reader.read()

    async with raw_server(script) as server:
        pool = Pool(server.url, connect_seconds=10.0)
        await ask(pool)
        sent(pool, fresh=True)
        await until(lambda: len(server.lines) == 2)
        sent(pool, fresh=True)
        await pool.close()
        await until(lambda: not pool.connections and not pool._connecting)
        await until(lambda: server.ended == len(server.lines))


@pytest.mark.parametrize("connecting", [True, False])
async def test_retired_pool_finishes_what_is_under_way_and_keeps_nothing(connecting: bool) -> None:
    """An abort may still have to be said to an engine that is listed no more."""
    go_on = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        await go_on.wait()
        await line.send(OK)
        await line.reader.read()

    async with raw_server(script) as server:
        pool = Pool(server.url, connect_seconds=10.0)
        go_on.set()
        await ask(pool)
        go_on.clear()
        answer, _ = sent(pool, fresh=True)
        if not connecting:
            await until(lambda: len(server.lines) == 2)
        pool.retire()
        await until(lambda: len(server.lines) == 2 and server.ended == 1)
        later, _ = sent(pool)
        go_on.set()
        for each in (answer, later):
            await asyncio.wait_for(each.over.wait(), 10)
            assert each.body == b"{}"
        await until(lambda: not pool.connections and server.ended == 3)


# --- TLS ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> Made:
    return make("authority", authority=True)


async def test_https_engine_is_checked(authority: Made, tmp_path: Path) -> None:
    files = Files(tmp_path, make("127.0.0.1", signer=authority))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.pem)
    async with raw_server(tls=context) as server:
        trusting = Pool(server.url, connect_seconds=10.0, trust=EngineTrust(ca=ca))
        for _ in range(2):
            assert (await ask(trusting)).body == b"{}"
        assert len(server.lines) == 1
        await trusting.close()
        doubting = Pool(server.url, connect_seconds=10.0)
        answer = await ask(doubting)
        assert answer.fault is Fault.REFUSED
        assert "CERTIFICATE_VERIFY_FAILED" in answer.message
        await until(lambda: not trusting.connections and not doubting.connections)
