"""`/v1/models`: what the decode engines in rotation say, since they are who answers the prompts."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request, Response

from plait.router.errors import RouterError
from plait.router.headers import to_client
from plait.router.state import RouterState
from plait.router.upstream.fetch import FetchError, fetch

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
    if state.keys is not None:
        state.keys.admit(request.headers.raw)
    headers = [(b"accept", b"application/json")]
    if state.config.engine_api_key:
        headers.append((b"authorization", b"Bearer " + state.config.engine_api_key.encode()))
    path = request.scope["raw_path"].decode("ascii")
    for worker in {pair.decode: None for pair in state.workers.pairs()}:
        try:
            answer = await fetch(
                worker.pool, "GET", path, headers=headers, seconds=state.config.deadlines.connect
            )
        except (FetchError, TimeoutError) as error:
            log.warning("decode %s: no answer to %s: %r", worker.url, path, error)
            continue
        if answer.status < 500 and answer.status not in (401, 403):
            return Response(
                answer.body,
                answer.status,
                headers={k.decode("latin-1"): v.decode("latin-1") for k, v in to_client(answer.headers)},
            )
    raise RouterError(503, "No decode engine is ready; GET /ready says why.", code="no_pair")
