"""The routes that take a prompt: raw ASGI, since what they do is pass bytes on."""

from __future__ import annotations

import logging
import time

from multidict import CIMultiDict
from starlette.types import Receive, Scope, Send

from plait.router.body import Route, fresh_tags, parse, splice
from plait.router.downstream import Client, ClientGoneError
from plait.router.errors import RouterError
from plait.router.headers import to_engine
from plait.router.legs import Legs, Outcome
from plait.router.pairing import Side
from plait.router.state import RouterState
from plait.router.upstream import FailureKind, Leg

log = logging.getLogger("plait.router.requests")


class PromptRoute:
    """ASGI app of one prompt route."""

    def __init__(self, route: Route, state: RouterState) -> None:
        self._route = route
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever happens, the client gets an answer or is gone."""
        state = self._state
        client = Client(scope, receive, send, stall=state.config.deadlines.client_stall)
        if state.lifecycle.draining:
            error = RouterError(503, "The router is ending and takes no new requests.", code="draining")
            await _tell(client, error)
            state.metrics.request(route=self._route, outcome="draining", seconds=0.0, first_byte=None)
            return
        with state.lifecycle.request(), state.metrics.in_flight.track_inprogress():
            began = time.perf_counter()
            try:
                call_headers = to_engine(scope["headers"], api_key=state.config.engine_api_key)
                body = await client.read_body(
                    limit=state.config.max_body_bytes, seconds=state.config.deadlines.body
                )
                began = time.perf_counter()
                outcome = await self._pair_up(client, body, call_headers)
            except RouterError as error:
                name = "no_pair" if error.code == "no_pair" else "refused"
                outcome = Outcome(name, told=False, error=error)
            except ClientGoneError:
                outcome = Outcome("client_gone", told=True)
            except Exception:
                log.exception("request %s: the router failed", client.request_id or "-")
                outcome = Outcome(
                    "fault", told=False, error=RouterError(500, "The router failed.", code="router_fault")
                )
            if not outcome.told and outcome.error is not None:
                await _tell(client, outcome.error)
            state.metrics.request(
                route=self._route,
                outcome=outcome.name,
                seconds=time.perf_counter() - began,
                first_byte=None if client.started_at is None else client.started_at - began,
            )

    async def _pair_up(self, client: Client, body: bytes, headers: CIMultiDict[str]) -> Outcome:
        """Run the request on the next pair. Raises RouterError where there is none, or the body is wrong."""
        state = self._state
        call = parse(body, self._route, max_batch=state.config.max_batch)
        pair = state.workers.pick()
        if pair is None:
            raise RouterError(
                503,
                "No prefill and decode engines with equal contracts are ready; GET /ready says why.",
                code="no_pair",
            )
        tags = fresh_tags(call.batch)
        client.request_id = tags.request_id
        sent = splice(
            call,
            tags,
            bootstrap_host=pair.prefill.bootstrap_host,
            bootstrap_port=pair.prefill.bootstrap_port,
        )
        legs = Legs(
            Leg(pair.prefill, self._route, headers, sent, rids=tags.rids),
            Leg(pair.decode, self._route, headers, sent, rids=tags.rids),
            client,
            session=state.session,
            config=state.config,
            aborts=state.aborts,
            merge=call.prompt_logprobs,
        )
        outcome = await legs.run(state.lifecycle.stop)
        if failure := outcome.failure:
            worker = pair.prefill if failure.side is Side.PREFILL else pair.decode
            state.metrics.leg_failed(failure, worker)
            if failure.kind is FailureKind.REFUSED:
                worker.out("it refused a connection")
            log.warning("request %s: %s %s: %s", tags.request_id, failure.side, worker.url, failure)
        return outcome


async def _tell(client: Client, error: RouterError) -> None:
    try:
        await client.fail(error)
    except ClientGoneError:
        log.debug("request %s: client left before its error", client.request_id or "-")
