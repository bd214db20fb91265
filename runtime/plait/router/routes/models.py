"""`/v1/models`: what a decode engine in rotation says, since that is who answers the prompts."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
from fastapi import APIRouter, Request, Response

from plait.router.errors import RouterError
from plait.router.headers import to_client, to_engine
from plait.router.state import RouterState

log = logging.getLogger("plait.router.models")


def routes(state: RouterState) -> APIRouter:
    """The OpenAI model list, and one model of it."""
    router = APIRouter(tags=["openai"])

    @router.get("/v1/models")
    async def models(request: Request) -> Response:
        return await _ask(state, request)

    @router.get("/v1/models/{model:path}")
    async def model(model: str, request: Request) -> Response:
        return await _ask(state, request)

    return router


async def _ask(state: RouterState, request: Request) -> Response:
    headers = to_engine(request.headers.raw, api_key=state.config.engine_api_key)
    path = request.scope["raw_path"].decode("ascii")
    for url in {pair.decode.url: None for pair in state.workers.pairs()}:
        try:
            async with (
                asyncio.timeout(state.config.deadlines.connect),
                state.session.get(url + path, headers=headers, allow_redirects=False) as response,
            ):
                body = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            log.warning("decode %s: no answer to %s: %r", url, path, error)
            continue
        if response.status < 500:
            return Response(
                body,
                response.status,
                headers={k.decode(): v.decode() for k, v in to_client(response.headers)},
            )
    raise RouterError(503, "No decode engine is ready; GET /ready says why.", code="no_pair")
