"""The head and body of a request, as the parser reads them: its callbacks, apart from the connection.

Called for every header of every request, so it is compiled where the connection, which inherits from
uvicorn's, cannot be.
"""

from __future__ import annotations

from typing import Protocol

from plait.router.incoming import Headers, Incoming


class ReadBy(Protocol):
    """The connection."""

    def begun(self) -> None:
        """The first byte of a request came."""

    def too_many_headers(self) -> None:
        """Refuse the request; raises, which ends the parser's work."""

    def head_read(self) -> None:
        """The head is whole. May raise, which ends the parser's work."""

    def body_read(self, data: bytes) -> None:
        """The next bytes of a body that no prompt reads."""

    def message_read(self) -> None:
        """A message that is no prompt is whole."""

    def prompt_waits(self, prompt: Incoming) -> None:
        """Bytes came of a prompt whose turn has not come."""

    def prompt_read(self) -> None:
        """A prompt's body is whole."""


class Reading:
    """What httptools' parser calls. `prompt`: whose body comes in now, None for other routes."""

    def __init__(self, connection: ReadBy, most_headers: int) -> None:
        self.url = b""
        self.headers: Headers = []
        self.expects_continue = False
        self.hosts = 0
        self.prompt: Incoming | None = None
        self._connection = connection
        self._most_headers = most_headers

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expects_continue = False
        self.hosts = 0
        self._connection.begun()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        headers = self.headers
        if len(headers) >= self._most_headers:
            self._connection.too_many_headers()
        name = name.lower()
        if name == b"host":
            self.hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expects_continue = True
        headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.prompt = None
        self._connection.head_read()

    def on_body(self, data: bytes) -> None:
        prompt = self.prompt
        if prompt is None:
            self._connection.body_read(data)
            return
        prompt.feed(data)
        if not prompt.begun:
            self._connection.prompt_waits(prompt)

    def on_message_complete(self) -> None:
        prompt = self.prompt
        if prompt is None:
            self._connection.message_read()
        else:
            self._connection.prompt_read()
            prompt.arrived()
