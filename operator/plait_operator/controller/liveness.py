"""Is the operator alive, and is it ready? Answers for the kubelet's probes, and figures for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from plait_operator.apply.meters import Meters

Check: TypeAlias = Callable[[], str]
"""Returns what is wrong, empty when nothing is."""

SILENT_S: Final = 240.0
"""A watch or loop from which nothing was heard for so long, not even a failure, is dead."""
STUCK_S: Final = 300.0
"""A turn that takes so long will not end."""


class Liveness:
    """`alive`: checks whose failure means that only a new process helps. `ready`: it may get to work."""

    def __init__(self, *, alive: Mapping[str, Check], ready: Mapping[str, Check]) -> None:
        self._alive = dict(alive)
        self._ready = dict(ready)

    def dead(self) -> list[str]:
        """What is wrong for good, one line each."""
        return _failed(self._alive)

    def unready(self) -> list[str]:
        """What is not there yet."""
        return _failed(self._alive | self._ready)


def application(liveness: Liveness, meters: Meters, *, scrape: Callable[[], None]) -> web.Application:
    """GET /healthz, /readyz, /metrics. `scrape` is called before figures are read."""

    async def healthz(_: web.Request) -> web.Response:
        return _answer(liveness.dead())

    async def readyz(_: web.Request) -> web.Response:
        return _answer(liveness.unready())

    async def metrics(_: web.Request) -> web.Response:
        scrape()
        body = generate_latest(meters.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


def _failed(checks: Mapping[str, Check]) -> list[str]:
    return [f"{name}: {trouble}" for name, check in checks.items() if (trouble := check())]


def _answer(troubles: list[str]) -> web.Response:
    return web.Response(status=503 if troubles else 200, text="\n".join(troubles or ["ok"]) + "\n")
