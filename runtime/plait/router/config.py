"""What the router is told: the engines it pairs, where it listens, and every deadline it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit


class ConfigError(ValueError):
    """A setting the router cannot use. The message names the field, its value and the fix."""

    def __init__(self, field: str, value: object, fix: str) -> None:
        super().__init__(f"{field} = {value!r}: {fix}")
        self.field = field
        self.value = value
        self.fix = fix


class PrefillTarget(NamedTuple):
    """One prefill group: its HTTP address, and the port of its bootstrap server on the same host."""

    url: str
    bootstrap_port: int

    @classmethod
    def parse(cls, text: str) -> PrefillTarget:
        """`URL,BOOTSTRAP_PORT` (as the command line writes it) -> target. Raises ConfigError."""
        url, comma, port = text.rpartition(",")
        if not comma or not port.strip().isdecimal():
            raise ConfigError(
                "prefill", text, "write URL,BOOTSTRAP_PORT, for example http://10.0.0.1:30000,8998"
            )
        return cls(url.strip(), int(port))

    @property
    def bootstrap_host(self) -> str:
        """Host that decode engines reach the bootstrap server at (an IPv6 address without brackets)."""
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Every wait of the router, in seconds; none is without an end.

    `connect`: to open a connection to an engine. `first_byte`: from sending a request to the first byte of
    its answer (the whole prefill, and for an answer that is not streamed the whole generation). `idle`:
    between two reads of an answer under way. `client_stall`: a client that reads nothing. `body`: a client
    that sends its request slowly. `status`: one poll of an engine. `abort`: one abort message. `linger`: a
    prefill answer that is still due after decode has finished. `drain`: requests under way at SIGTERM.
    """

    connect: float = 5.0
    first_byte: float = 600.0
    idle: float = 120.0
    client_stall: float = 120.0
    body: float = 60.0
    status: float = 1.0
    abort: float = 2.0
    linger: float = 5.0
    drain: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not 0 < value < 86_400:
                raise ConfigError(f"deadlines.{each.name}", value, "give seconds between 0 and a day")


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """All settings of one router. Raises ConfigError where it is built with one that cannot work.

    `admin_port` 0: metrics and router API are served on `port` too. `poll_misses` polls in a row that time
    out take a worker out of rotation (a refused or broken connection does so at once). `status_cache` is
    how old, in seconds, a status may be that the router API shows without asking the engine again.
    """

    prefill: Sequence[PrefillTarget]
    decode: Sequence[str]
    host: str = "127.0.0.1"
    port: int = 8000
    admin_port: int = 0
    engine_api_key: str = field(default="", repr=False)
    deadlines: Deadlines = field(default_factory=Deadlines)
    max_body_bytes: int = 32 << 20
    max_answer_bytes: int = 256 << 20
    max_batch: int = 1024
    poll_interval: float = 1.0
    poll_misses: int = 3
    status_cache: float = 0.2

    def __post_init__(self) -> None:
        prefill = tuple(PrefillTarget(_engine_url("prefill", t.url), t.bootstrap_port) for t in self.prefill)
        decode = tuple(_engine_url("decode", url) for url in self.decode)
        object.__setattr__(self, "prefill", prefill)
        object.__setattr__(self, "decode", decode)
        if not prefill:
            raise ConfigError("prefill", (), "name at least one prefill engine: --prefill URL,BOOTSTRAP_PORT")
        if not decode:
            raise ConfigError("decode", (), "name at least one decode engine: --decode URL")
        urls = [t.url for t in prefill] + list(decode)
        for url in urls:
            if urls.count(url) > 1:
                raise ConfigError("prefill, decode", url, "name every engine once, and as one role")
        for target in prefill:
            _port("prefill bootstrap port", target.bootstrap_port)
        _port("port", self.port, zero=True)
        _port("admin_port", self.admin_port, zero=True)
        if self.admin_port and self.admin_port == self.port:
            raise ConfigError("admin_port", self.admin_port, "give another port than --port, or leave it out")
        for name in ("max_body_bytes", "max_answer_bytes", "max_batch", "poll_misses"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "give a number of at least 1")
        if self.poll_interval <= 0:
            raise ConfigError("poll_interval", self.poll_interval, "give seconds above 0")
        if self.status_cache < 0:
            raise ConfigError("status_cache", self.status_cache, "give seconds, 0 to always ask")


def _port(name: str, value: int, *, zero: bool = False) -> None:
    if not (0 if zero else 1) <= value <= 65_535:
        raise ConfigError(name, value, "give a port between 1 and 65535")


def _engine_url(name: str, url: str) -> str:
    """`url` without a trailing slash; ConfigError unless it is http(s)://HOST[:PORT]."""
    fix = "write http://HOST:PORT (no path, no user)"
    try:
        parts: SplitResult = urlsplit(url.strip())
        _ = parts.port
    except ValueError as error:
        raise ConfigError(name, url, fix) from error
    clean = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
    if not clean or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(name, url, fix)
    return f"{parts.scheme}://{parts.netloc}"
