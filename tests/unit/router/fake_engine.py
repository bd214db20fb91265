"""An engine without a wire: what is sent to it stands in `sent`, and the test says what it answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.unit.router.stub_engine import engine_status

from plait.router.discovery.target import Target
from plait.router.upstream.connection import Buffer, Receiver
from plait.router.upstream.pool import Sending
from plait.router.workers import Worker

PREFILL = Target.prefill("http://p:1", bootstrap_port=8998)
DECODE = Target.decode("http://d:1")
JSON = [(b"content-type", b"application/json")]
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]


class FakeConnection:
    """`log` of what was done to it."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def pause(self) -> None:
        self.log.append("pause")

    def resume(self) -> None:
        self.log.append("resume")

    def close(self) -> None:
        self.log.append("close")


class Sent(NamedTuple):
    """One request."""

    request: bytes
    receiver: Receiver
    fresh: bool
    connection: FakeConnection


class FakePool:
    """In a pool's place."""

    def __init__(self, authority: bytes) -> None:
        self.authority = authority
        self.sent: list[Sent] = []

    def send(self, pieces: list[Buffer], receiver: Receiver, *, fresh: bool = False) -> Sending:
        connection: Any = FakeConnection()
        self.sent.append(Sent(b"".join(pieces), receiver, fresh, connection))
        return Sending(connection, None)

    def drop_idle(self) -> None:
        pass


def fake_worker(target: Target) -> tuple[Worker, FakePool]:
    """A worker in rotation, and its pool."""
    fake = FakePool(target.url.removeprefix("http://").encode())
    pool: Any = fake
    worker = Worker(target, pool, limit=100, freed=lambda: None, changed=lambda: None)
    worker.take(engine_status(target.side, wire_hash="wire-a", cp=1))
    return worker, fake
