"""Mock engines under a router: started on the load's core, asked for what they saw."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

from bench.router.processes import free_ports, running
from bench.router.tools import WORK, LoadError, program

FIRST_BOOTSTRAP_PORT = 8998


class Mocks(NamedTuple):
    """Ports of mock engines of one process."""

    prefill: list[int]
    decode: list[int]

    @property
    def prefill_targets(self) -> list[tuple[str, int]]:
        """URL and bootstrap port of each prefill engine (nobody listens on the latter)."""
        return [(f"http://127.0.0.1:{port}", FIRST_BOOTSTRAP_PORT + i) for i, port in enumerate(self.prefill)]

    @property
    def decode_urls(self) -> list[str]:
        """URL of each decode engine."""
        return [f"http://127.0.0.1:{port}" for port in self.decode]

    @property
    def decode_address(self) -> str:
        """HOST:PORT of one decode engine, to ask it directly."""
        return f"127.0.0.1:{self.decode[0]}"

    def stats(self) -> dict[str, Any]:
        """What the engines saw since the last `reset`."""
        return self._get("stats")

    def reset(self) -> None:
        """Empty caches and counters. Only while no request is under way."""
        self._get("reset")

    def _get(self, name: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.prefill[0]}/mock/{name}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found


@contextlib.contextmanager
def mock_engines(
    *, core: int, prefill: int, decode: int, prefill_rate: float = 0, cache_pages: int = 1
) -> Iterator[Mocks]:
    """Mock engines for as long as the block lasts.

    `prefill_rate`: tokens/s that a prefill engine computes; 0: prompts take no time. `cache_pages`: pages of
    64 tokens that each keeps.
    """
    ports = free_ports(prefill + decode)
    mocks = Mocks(ports[:prefill], ports[prefill:])
    command = [
        program("mock"),
        *("-prefill", ",".join(map(str, mocks.prefill))),
        *("-decode", ",".join(map(str, mocks.decode))),
        *("-prefill-rate", str(prefill_rate), "-cache-pages", str(cache_pages)),
    ]
    with running(command, core=core, log=WORK / "mock.log") as tree:
        until = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError):
                mocks.stats()
                break
            if tree.ended is not None or time.monotonic() > until:
                raise LoadError(f"the mock engines did not start: {tree.tail()}")
            time.sleep(0.05)
        yield mocks
