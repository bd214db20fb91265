"""The router API and `/metrics`: what the engines say about their cache, asked for fresh."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from plait.router import api
from plait.router.state import RouterState


def routes(state: RouterState) -> APIRouter:
    """`/api/v1/…` and `/metrics`. Each asks the engines first, for `deadlines.status` at most."""
    router = APIRouter(tags=["figures"])

    @router.get("/api/v1/groups")
    async def groups() -> api.Groups:
        await state.workers.refresh()
        return api.groups(state.workers)

    @router.get("/api/v1/cache")
    async def cache() -> api.Cache:
        await state.workers.refresh()
        return api.cache(state.workers)

    @router.get("/api/v1/transfers")
    async def transfers() -> api.Transfers:
        await state.workers.refresh()
        return api.transfers(state.workers)

    @router.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        await state.workers.refresh()
        return Response(state.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return router
