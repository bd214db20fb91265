"""The admin API: list, add, drain and remove workers. On the admin port only.

A change is in force in all processes of this router when its answer comes. Other replicas have their own.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from plait.router import api
from plait.router.board import Board
from plait.router.config import ConfigError
from plait.router.discovery import address
from plait.router.discovery.target import Target
from plait.router.errors import RouterError, bad_request
from plait.router.pairing import Side


class NewWorker(BaseModel):
    """A worker to add. A prefill engine's needs `bootstrap_port`; `bootstrap_host`: default the URL's."""

    model_config = ConfigDict(extra="forbid")

    side: Side
    url: str = Field(examples=["http://10.0.0.1:30000"])
    bootstrap_port: int | None = None
    bootstrap_host: str | None = None


class Worker(BaseModel):
    """One worker as the router has it. `source`: `admin`, or `source` (flags, file or Kubernetes)."""

    url: str
    side: Side
    source: str
    ready: bool
    trouble: str
    draining: bool
    in_flight: int


class Workers(BaseModel):
    """`GET /api/v1/workers`. `processes`: pids of the router's processes that serve clients."""

    processes: list[int]
    workers: list[Worker]


_Url = Annotated[str, Query(description="The worker's address, as the list has it.")]


def routes(board: Board) -> APIRouter:
    """`/api/v1/workers`, and what may be done with one."""

    async def authorized(request: Request) -> None:
        wanted = board.admin_api_key
        if wanted:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {wanted}".encode()):
                raise RouterError(
                    401,
                    "The admin API needs its key: send it as 'Authorization: Bearer KEY'.",
                    code="invalid_api_key",
                    headers=((b"www-authenticate", b"Bearer"),),
                )

    router = APIRouter(prefix="/api/v1/workers", tags=["admin"], dependencies=[Depends(authorized)])

    @router.get("")
    async def list_workers() -> Workers:
        await board.refresh()
        return _list(board)

    @router.post("", status_code=201)
    async def add_worker(worker: NewWorker) -> Workers:
        return await _change(board, lambda: board.directory.add(_target(worker)))

    @router.delete("")
    async def remove_worker(url: _Url) -> Workers:
        return await _change(board, lambda: board.directory.remove(_clean(url)))

    @router.post("/drain")
    async def drain_worker(url: _Url) -> Workers:
        return await _change(board, lambda: board.directory.drain(_clean(url)))

    @router.post("/undrain")
    async def undrain_worker(url: _Url) -> Workers:
        return await _change(board, lambda: board.directory.drain(_clean(url), drain=False))

    return router


async def _change(board: Board, change: Callable[[], None]) -> Workers:
    change()
    await board.settled()
    await board.refresh()
    return _list(board)


def _list(board: Board) -> Workers:
    groups = api.groups(board.workers, board.reports).groups
    return Workers(
        processes=[r.pid for r in board.reports],
        workers=[
            Worker(
                url=g.url,
                side=g.side,
                source=board.directory.source_of(g.url),
                ready=g.ready,
                trouble=g.trouble,
                draining=g.draining,
                in_flight=g.in_flight,
            )
            for g in groups
        ],
    )


def _target(worker: NewWorker) -> Target:
    try:
        if worker.side is Side.DECODE:
            if worker.bootstrap_port is not None or worker.bootstrap_host is not None:
                raise bad_request("A decode engine has no bootstrap server.", param="bootstrap_port")
            return Target.decode(worker.url, field="url")
        if worker.bootstrap_port is None:
            raise bad_request(
                "'bootstrap_port' is needed for a prefill engine: the port of its bootstrap server.",
                param="bootstrap_port",
            )
        return Target.prefill(
            worker.url,
            bootstrap_port=worker.bootstrap_port,
            bootstrap_host=worker.bootstrap_host or "",
            field="url",
        )
    except ConfigError as error:
        raise bad_request(str(error), param=error.field) from error


def _clean(url: str) -> str:
    try:
        return address.engine_url("url", url)
    except ConfigError as error:
        raise bad_request(str(error), param="url") from error
