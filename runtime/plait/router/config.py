"""What the router is told: the engines it pairs, where it listens, and every deadline it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from plait.router.discovery.kubernetes.settings import KubernetesSettings

# SGLang's.
DEFAULT_BOOTSTRAP_PORT = 8998

# Names of placement.policy.Policy, which is not imported for the command line's sake.
POLICIES = ("prefix-aware", "least-load", "round-robin", "random")


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
        """`URL[,BOOTSTRAP_PORT]` (as the command line writes it) -> target. Raises ConfigError.

        Without a port it is the engine's own default, as for its `--disaggregation-bootstrap-port`.
        """
        url, comma, port = text.partition(",")
        if not comma:
            return cls(url.strip(), DEFAULT_BOOTSTRAP_PORT)
        if not port.strip().isdecimal():
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
    between two reads of an answer under way. `total`: of a request, waiting and retries included. `queue`:
    waiting for a worker that has room. `client_stall`: a client that reads nothing. `head`, `body`: a client
    that sends its request slowly. `status`: one poll of an engine. `abort`: one abort message. `linger`: a
    prefill answer that is still due after decode has finished. `drain`: requests under way at SIGTERM.
    """

    connect: float = 2.0
    first_byte: float = 600.0
    idle: float = 120.0
    total: float = 3600.0
    queue: float = 30.0
    client_stall: float = 120.0
    head: float = 15.0
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

    Workers come from one of three: `prefill` and `decode`, `workers_file`, or `kubernetes`; the admin API
    adds to it.

    `admin_port` 0: metrics and router API are served on `port` too, and there is no admin API. A poll that
    times out makes a worker suspect (it gets requests only when nobody else can take them), `poll_misses` in
    a row take it out of rotation (a refused or broken connection does so at once). `status_cache` is how
    old, in seconds, a status may be that the router API shows without asking the engine again.
    `worker_limit`: legs under way on one worker, per process; more wait, `queue_limit` at most. `retries`:
    further tries of one request, each on another pair. `breaker_failures` in a row open a worker's circuit
    breaker, for `breaker_wait` seconds at first. `bound`: how much more than the mean load a worker may
    have and still be chosen for its cache. `sticky_header`: requests with equal values stay together.
    """

    prefill: Sequence[PrefillTarget] = ()
    decode: Sequence[str] = ()
    workers_file: str = ""
    kubernetes: KubernetesSettings | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = ""
    admin_port: int = 0
    processes: int = 1
    engine_api_key: str = field(default="", repr=False)
    admin_api_key: str = field(default="", repr=False)
    api_keys: Sequence[str] = ()
    tls_certificate: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    engine_ca: str = ""
    engine_insecure: bool = False
    otlp_endpoint: str = ""
    otlp_sample: float = 1.0
    deadlines: Deadlines = field(default_factory=Deadlines)
    policy: str = "prefix-aware"
    decode_policy: str = "least-load"
    sticky_header: str = "x-session-id"
    bound: float = 1.25
    worker_limit: int = 1024
    queue_limit: int = 1024
    retries: int = 2
    breaker_failures: int = 3
    breaker_wait: float = 5.0
    max_body_bytes: int = 32 << 20
    max_answer_bytes: int = 256 << 20
    max_head_bytes: int = 64 << 10
    max_headers: int = 100
    max_batch: int = 1024
    max_samples: int = 128
    poll_interval: float = 0.5
    poll_misses: int = 3
    status_cache: float = 0.2

    def __post_init__(self) -> None:
        # Not at the top: addresses raise this module's error.
        from plait.router.discovery.address import engine_url

        prefill = tuple(PrefillTarget(engine_url("prefill", t.url), t.bootstrap_port) for t in self.prefill)
        decode = tuple(engine_url("decode", url) for url in self.decode)
        object.__setattr__(self, "prefill", prefill)
        object.__setattr__(self, "decode", decode)
        self._check_sources()
        for target in prefill:
            _port("prefill bootstrap port", target.bootstrap_port)
        _port("port", self.port, zero=True)
        _port("admin_port", self.admin_port, zero=True)
        if self.admin_port and self.admin_port == self.port:
            raise ConfigError("admin_port", self.admin_port, "give another port than --port, or leave it out")
        self._check_processes()
        self._check_security()
        for name in ("policy", "decode_policy"):
            if getattr(self, name) not in POLICIES:
                raise ConfigError(name, getattr(self, name), f"give one of {', '.join(POLICIES)}")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "give a number of at least 1")
        for name in ("queue_limit", "retries", "status_cache"):
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "give a number of at least 0")
        if self.bound < 1:
            raise ConfigError(
                "bound", self.bound, "give a factor of at least 1: 1.25 lets a worker have 25 % more"
            )
        if not 0 < self.breaker_wait <= 60:
            raise ConfigError("breaker_wait", self.breaker_wait, "give seconds above 0, at most 60")
        if self.poll_interval <= 0:
            raise ConfigError("poll_interval", self.poll_interval, "give seconds above 0")

    def _check_sources(self) -> None:
        flags = bool(self.prefill or self.decode)
        given = [
            name
            for name, there in (
                ("prefill, decode", flags),
                ("workers_file", bool(self.workers_file)),
                ("kubernetes", self.kubernetes is not None),
            )
            if there
        ]
        if len(given) > 1:
            raise ConfigError(given[1], "given", f"workers come from one source, and {given[0]} is given too")
        if flags or not given:
            for side, count, fix in (
                ("prefill", len(self.prefill), "--prefill URL,BOOTSTRAP_PORT"),
                ("decode", len(self.decode), "--decode URL"),
            ):
                if not count:
                    raise ConfigError(side, (), f"name at least one {side} engine: {fix}")
        urls = [t.url for t in self.prefill] + list(self.decode)
        for url in urls:
            if urls.count(url) > 1:
                raise ConfigError("prefill, decode", url, "name every engine once, and as one role")

    def _check_processes(self) -> None:
        if not 1 <= self.processes <= 64:
            raise ConfigError("processes", self.processes, "give a number from 1 to 64")
        if self.processes > 1 and not self.admin_port:
            raise ConfigError(
                "admin_port", 0, "give a port: with several processes, metrics and API are served there only"
            )
        if self.processes > 1 and not self.port:
            raise ConfigError("port", 0, "give a port: several processes have to share it")

    def _check_security(self) -> None:
        if bool(self.tls_certificate) != bool(self.tls_key):
            missing = "tls_key" if self.tls_certificate else "tls_certificate"
            raise ConfigError(missing, "", "give both, certificate and key, or neither")
        if self.tls_client_ca and not self.tls_certificate:
            raise ConfigError(
                "tls_certificate", "", "give a certificate: client certificates are checked by TLS"
            )
        if self.admin_api_key and not self.admin_port:
            raise ConfigError("admin_port", 0, "give a port: the admin API is served there only")
        if self.api_keys and not self.admin_port:
            raise ConfigError(
                "admin_port",
                0,
                "give a port: with client keys, metrics and API must not stand on the open port",
            )


_AT_LEAST_ONE = (
    "max_body_bytes",
    "max_answer_bytes",
    "max_head_bytes",
    "max_headers",
    "max_batch",
    "max_samples",
    "poll_misses",
    "worker_limit",
    "breaker_failures",
)


def _port(name: str, value: int, *, zero: bool = False) -> None:
    if not (0 if zero else 1) <= value <= 65_535:
        raise ConfigError(name, value, "give a port between 1 and 65535")
