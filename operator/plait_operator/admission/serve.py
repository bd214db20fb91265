"""The admission server: probes at once, webhooks once there is a certificate, a drain at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from plait_operator.admission.app import health, webhooks
from plait_operator.admission.metrics import AdmissionMetrics
from plait_operator.admission.tls import ServingCertificate

log = logging.getLogger("plait.admission")

# The API server closes an idle connection after 90 s: it must be the one to do so, or a review could be sent
# into a connection that is being closed.
_KEEP_ALIVE_S = 120
_POLL_S = 1.0
_REMIND_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """`certificates`: folder with tls.crt and tls.key. `drain_s`: how long reviews get to end on SIGTERM."""

    certificates: Path
    port: int = 8443
    health_port: int = 8081
    host: str = "0.0.0.0"
    experimental: frozenset[str] = frozenset()
    drain_s: int = 20


def run(options: Options) -> None:
    """Serve until SIGTERM or SIGINT. Raises SystemExit where a port cannot be had."""
    asyncio.run(serve(options))


async def serve(options: Options) -> None:
    """As `run`, in a loop of the caller's. Takes over SIGTERM and SIGINT."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    certificate, metrics = ServingCertificate(options.certificates), AdmissionMetrics()
    _look(certificate, metrics)

    def trouble() -> str:
        if stop.is_set():
            return "ends"
        if certificate.not_after is None:
            return f"waits for a certificate: {certificate.fault}"
        if certificate.not_after <= time.time():
            return "the certificate ran out"
        return "" if secure.started else "starts"

    plain = _Server(health(metrics, ready=trouble), options, port=options.health_port)
    secure = _Server(
        webhooks(metrics, experimental=options.experimental),
        options,
        port=options.port,
        context=certificate.context,
    )
    probes = asyncio.create_task(plain.serve())
    poller = asyncio.create_task(_poll(certificate, metrics))
    reviews: asyncio.Task[None] | None = None
    stopping = asyncio.create_task(stop.wait())
    try:
        if await _first(certificate, stop, probes):
            log.info("serving webhooks on port %d", options.port)
            reviews = asyncio.create_task(secure.serve())
        waited = [task for task in (stopping, probes, poller, reviews) if task is not None]
        done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()  # none of them ends by itself: this raises what ended it
    finally:
        stop.set()
        poller.cancel()
        secure.should_exit = True
        if reviews is not None:
            await asyncio.wait({reviews})
        plain.should_exit = True
        await asyncio.wait({probes})
        log.info("ended")


async def _first(certificate: ServingCertificate, stop: asyncio.Event, probes: asyncio.Task[None]) -> bool:
    """Wait for a certificate, and say so now and then. False when the end came first."""
    told = float("-inf")
    while certificate.not_after is None:
        if stop.is_set() or probes.done():
            return False
        if time.monotonic() - told >= _REMIND_S:
            told = time.monotonic()
            log.info("waiting for the webhook's certificate: %s", certificate.fault)
        await asyncio.sleep(0.1)
    return not stop.is_set()


async def _poll(certificate: ServingCertificate, metrics: AdmissionMetrics) -> None:
    while True:
        await asyncio.sleep(_POLL_S)
        _look(certificate, metrics)


def _look(certificate: ServingCertificate, metrics: AdmissionMetrics) -> None:
    if certificate.poll() and certificate.not_after is not None:
        metrics.certificate(certificate.not_after)
        date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(certificate.not_after))
        log.info("the webhook's certificate is valid until %s", date)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the webhooks drain while probes still answer."""

    def __init__(
        self, app: Any, options: Options, *, port: int, context: ssl.SSLContext | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            host=options.host,
            port=port,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=options.drain_s,
        )
        config.load()
        config.ssl = context
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process's own are in `serve`."""
        yield
