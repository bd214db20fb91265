"""`plait router` as a process of its own, and the facts that the system knows about it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import psutil
from tests.router.harness.client import ask
from tests.router.harness.command import router_command
from tests.router.harness.exposition import Scrape
from tests.router.harness.ports import free_port

_START_WITHIN = 60.0


class RouterProcess:
    """A running router. `admin_port` serves metrics and the router API."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, admin_port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.admin_port = admin_port
        self.log = log
        self._facts = psutil.Process(process.pid)

    @property
    def base_url(self) -> str:
        """As the official client wants it."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def ready_urls(self) -> set[str]:
        """The engines in rotation."""
        reply = await ask(self.port, "GET", "/ready")
        return {w["url"] for w in reply.json()["workers"] if w["ready"]}

    async def scrape(self) -> Scrape:
        """All metrics now."""
        reply = await ask(self.admin_port, "GET", "/metrics")
        assert reply.status == 200, reply.body
        return Scrape(reply.body.decode())

    def rss(self) -> int:
        """Bytes of memory that the process holds."""
        return int(self._facts.memory_info().rss)

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        times = self._facts.cpu_times()
        return float(times.user + times.system)

    def descriptors(self) -> int:
        """Open file descriptors."""
        return int(self._facts.num_fds())

    def sockets(self, *, to_ports: Iterable[int] = (), at_port: int = 0) -> list[str]:
        """Its TCP connections that are not just waiting to be forgotten, as "local -> remote state".

        `to_ports`: those to engines; `at_port`: those from clients.
        """
        ports = set(to_ports)
        return [
            f"{c.laddr.port} -> {c.raddr.port} {c.status}"
            for c in self._facts.net_connections(kind="tcp")
            if c.raddr and (c.raddr.port in ports or c.laddr.port == at_port)
        ]

    def traces(self) -> list[str]:
        """Python's tracebacks in its log: a router that works leaves none."""
        text = self.log.read_text(errors="replace")
        starts = [found.start() for found in re.finditer(r"Traceback \(most recent call last\):", text)]
        return [text[max(0, start - 300) : start + 8000] for start in starts]

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-4000:]

    async def end(self) -> None:
        """SIGTERM, and SIGKILL where that does not end it within 10 s."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), 10)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
                raise AssertionError(f"the router did not end within 10 s:\n{self.tail()}") from None


@contextlib.asynccontextmanager
async def router_process(
    *, prefill: Iterable[str], decode: Iterable[str], flags: Iterable[str] = ()
) -> AsyncIterator[RouterProcess]:
    """Start `plait router` before these engines; ends it with the block.

    Yields when it answers, which does not mean that its engines are ready.
    """
    port, admin_port = free_port(), free_port()
    targets = [a for url in prefill for a in ("--prefill", f"{url},8998")]
    targets += [a for url in decode for a in ("--decode", url)]
    with tempfile.TemporaryDirectory(prefix="plait-router-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *router_command(),
                *targets,
                "--port",
                str(port),
                "--admin-port",
                str(admin_port),
                *flags,
                stdout=out,
                stderr=out,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        router = RouterProcess(process, port, admin_port, log)
        try:
            await _answering(router)
            yield router
        finally:
            await router.end()


async def _answering(router: RouterProcess) -> None:
    deadline = time.monotonic() + _START_WITHIN
    while True:
        assert router.process.returncode is None, f"the router ended at once:\n{router.tail()}"
        with contextlib.suppress(OSError):
            if (await ask(router.port, "GET", "/health")).status == 200:
                return
        assert time.monotonic() < deadline, f"no answer within {_START_WITHIN:g} s:\n{router.tail()}"
        await asyncio.sleep(0.05)
