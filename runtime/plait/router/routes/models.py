"""`/v1/models`: what the decode engines in rotation say, since they are who answers the prompts."""

from __future__ import annotations

import logging

import orjson
from fastapi import APIRouter, Request, Response

from plait.router.errors import RouterError
from plait.router.headers import to_client
from plait.router.state import RouterState
from plait.router.upstream.fetch import Answer, FetchError, fetch

log = logging.getLogger("plait.router.models")

_PATH = "/v1/models"


def routes(state: RouterState) -> APIRouter:
    """The OpenAI model list, and one model of it."""
    router = APIRouter(tags=["openai"])

    @router.get(_PATH)
    async def models(request: Request) -> Response:
        answer = await _ask(state, request)
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in to_client(answer.headers)}
        return Response(answer.body, answer.status, headers=headers)

    # The engine is asked for its list, not for the name: nothing that a client writes becomes a path there.
    @router.get(_PATH + "/{model:path}")
    async def model(model: str, request: Request) -> Response:
        answer = await _ask(state, request)
        cards = [card for card in _cards(answer) if card.get("id") == model]
        if not cards:
            message = f"The model '{model}' does not exist."
            raise RouterError(404, message, code="model_not_found", param="model")
        return Response(orjson.dumps(cards[0]), media_type="application/json")

    return router


async def _ask(state: RouterState, request: Request) -> Answer:
    if state.keys is not None:
        state.keys.admit(request.headers.raw)
    headers = [(b"accept", b"application/json")]
    if state.config.engine_api_key:
        headers.append((b"authorization", b"Bearer " + state.config.engine_api_key.encode()))
    for worker in {pair.decode: None for pair in state.workers.pairs()}:
        try:
            answer = await fetch(
                worker.pool, "GET", _PATH, headers=headers, seconds=state.config.deadlines.connect
            )
        except (FetchError, TimeoutError) as error:
            log.warning("decode %s: no answer to %s: %r", worker.url, _PATH, error)
            continue
        if answer.status == 200:
            return answer
        log.warning("decode %s: %s answered %d", worker.url, _PATH, answer.status)
    raise RouterError(503, "No decode engine is ready; GET /ready says why.", code="no_pair")


def _cards(answer: Answer) -> list[dict[str, object]]:
    try:
        found = orjson.loads(answer.body)["data"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        found = None
    if not isinstance(found, list):
        raise RouterError(502, "The decode engine's list of models cannot be read.", code="decode_broken")
    return [card for card in found if isinstance(card, dict)]
