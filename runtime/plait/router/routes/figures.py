"""The router API and `/metrics`: what the engines say about their cache, asked for fresh."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from plait.router import api
from plait.router.board import Board


def routes(board: Board) -> APIRouter:
    """`/api/v1/…` and `/metrics`. Each asks the engines first, for `deadlines.status` at most."""
    router = APIRouter(tags=["figures"])

    @router.get("/api/v1/groups")
    async def groups() -> api.Groups:
        await board.refresh()
        return api.groups(board.workers, board.reports)

    @router.get("/api/v1/cache")
    async def cache() -> api.Cache:
        await board.refresh()
        return api.cache(board.workers)

    @router.get("/api/v1/transfers")
    async def transfers() -> api.Transfers:
        await board.refresh()
        return api.transfers(board.workers)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus' text format."""
        await board.refresh()
        return Response(board.render(), media_type=CONTENT_TYPE_LATEST)

    return router
