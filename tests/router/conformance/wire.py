"""Raw HTTP/1.1 for the tests: bytes out, one answer in, and what became of the connection."""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple

# Longer than anything takes on a busy machine; a connection that neither answers nor closes fails the test.
PATIENCE_S = 20.0
_MAX_HEAD = 64 << 10


class Reply(NamedTuple):
    """One answer. `headers`: names in lower case; of two with one name the last."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection to `address`, used by one test. A context manager."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._sock = socket.create_connection(address, timeout=PATIENCE_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send(self, data: bytes) -> None:
        """Send all of `data`; a server that has refused and closed half-way is not an error."""
        try:
            self._sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def reply(self, *, method: str = "POST") -> Reply:
        """The next answer (100 Continue is passed over). Fails where none comes."""
        while (found := self._reply(method)).status == 100:
            pass
        return found

    def closed(self) -> bool:
        """Wait for the server's end of the connection: True once it is closed, False where bytes come."""
        if self._rest:
            return False
        try:
            return self._sock.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def finish(self) -> None:
        """Send no more (the other direction stays open)."""
        self._sock.shutdown(socket.SHUT_WR)

    def ended(self) -> bool:
        """Read whatever comes: True once the server has closed, False where it does not."""
        try:
            while self._recv():
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def _reply(self, method: str) -> Reply:
        head, self._rest = self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, code, *_ = first.split(" ", 2)
        assert version in ("HTTP/1.1", "HTTP/1.0"), first
        headers = {n.strip().lower(): v.strip() for n, v in (line.split(":", 1) for line in lines)}
        status = int(code)
        if method == "HEAD" or status in (100, 204, 304):
            return Reply(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Reply(status, headers, self._chunked())
        if "content-length" in headers:
            return Reply(status, headers, self._exactly(int(headers["content-length"])))
        body = self._rest
        while data := self._recv():
            body += data
        self._rest = b""
        return Reply(status, headers, body)

    def _chunked(self) -> bytes:
        body = b""
        while True:
            line, self._rest = self._until(b"\r\n")
            size = int(line.split(b";")[0], 16)
            part = self._exactly(size + 2)
            assert part.endswith(b"\r\n"), part[-10:]
            if not size:
                return body
            body += part[:-2]

    def _until(self, mark: bytes) -> tuple[bytes, bytes]:
        while mark not in self._rest:
            assert len(self._rest) < _MAX_HEAD, "no end of the head"
            data = self._recv()
            assert data, f"closed without an answer (got {self._rest!r})"
            self._rest += data
        head, _, rest = self._rest.partition(mark)
        return head, rest

    def _exactly(self, size: int) -> bytes:
        while len(self._rest) < size:
            data = self._recv()
            assert data, f"closed {size - len(self._rest)} bytes before the end"
            self._rest += data
        part, self._rest = self._rest[:size], self._rest[size:]
        return part

    def _recv(self) -> bytes:
        return self._sock.recv(64 << 10)


def request(
    method: str, target: str, body: bytes | None = None, *, headers: dict[str, str] | None = None
) -> bytes:
    """A well-formed HTTP/1.1 request; `headers` come after, or in place of, the usual ones."""
    sent = {"host": "router.test"}
    if body is not None:
        sent |= {"content-type": "application/json", "content-length": str(len(body))}
    sent |= headers or {}
    head = [f"{method} {target} HTTP/1.1", *(f"{n}: {v}" for n, v in sent.items())]
    return ("\r\n".join(head) + "\r\n\r\n").encode("utf-8", "surrogateescape") + (body or b"")
