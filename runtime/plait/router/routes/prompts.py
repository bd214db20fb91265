"""The routes that take a prompt: raw ASGI, since what they do is pass bytes on."""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from plait.router.body import Route, parse
from plait.router.downstream import REQUEST_ID_HEADER, Client, ClientGoneError
from plait.router.errors import RouterError, bad_request
from plait.router.exchange import Exchange, Outcome
from plait.router.headers import to_engine
from plait.router.placement.hashing import prefix_keys
from plait.router.placement.policy import Policy
from plait.router.state import RouterState

if TYPE_CHECKING:
    from plait.router.spans import RequestTrace

log = logging.getLogger("plait.router.requests")

_TRACE_HEADERS = (b"traceparent", b"tracestate")
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")


class PromptRoute:
    """ASGI app of one prompt route."""

    def __init__(self, route: Route, state: RouterState) -> None:
        self._route = route
        self._state = state
        config = state.config
        self._sticky = config.sticky_header.lower().encode()
        self._hashes = Policy.PREFIX_AWARE in (config.policy, config.decode_policy)
        self._metrics = state.metrics.route(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever happens, the client gets an answer or is gone."""
        state, metrics = self._state, self._metrics
        client = Client(scope, receive, send, stall=state.config.deadlines.client_stall)
        state.lifecycle.enter()
        arrived = time.perf_counter()
        trace = exchange = None
        try:
            if state.lifecycle.draining:
                outcome = Outcome("draining", told=False, error=_draining())
            else:
                headers = scope["headers"]
                sticky = self._look(headers, client)
                if state.keys is not None:
                    state.keys.admit(headers)
                if state.tracer.on:
                    trace = state.tracer.request(headers, start=time.monotonic())
                    lines = to_engine(headers, fixed=state.engine_lines, drop=_TRACE_HEADERS)
                else:
                    lines = to_engine(headers, fixed=state.engine_lines)
                body = await client.read_body(
                    limit=state.config.max_body_bytes, seconds=state.config.deadlines.body
                )
                arrived = time.perf_counter()
                call = parse(
                    body,
                    self._route,
                    max_batch=state.config.max_batch,
                    max_samples=state.config.max_samples,
                )
                keys = prefix_keys(call.fields, self._route, body=body) if self._hashes else None
                state.retries.earn()
                exchange = Exchange(call, client, lines, keys, sticky=sticky, state=state, trace=trace)
                outcome = await exchange.run()
        except RouterError as error:
            outcome = Outcome(_NAMES.get(error.code, "refused"), told=False, error=error)
        except ClientGoneError:
            outcome = Outcome("client_gone", told=True)
        except Exception:
            log.exception("request %s: the router failed", client.request_id or "-")
            outcome = Outcome(
                "fault", told=False, error=RouterError(500, "The router failed.", code="router_fault")
            )
        finally:
            state.lifecycle.leave()
        if not outcome.told and outcome.error is not None:
            await _tell(client, outcome.error)
        metrics.ended(outcome.name, arrived=arrived, first=client.started_at, now=time.perf_counter())
        if exchange is not None:
            metrics.exchanged(exchange)
        if trace is not None:
            self._end_trace(trace, client, outcome, exchange)

    def _end_trace(
        self, trace: RequestTrace, client: Client, outcome: Outcome, exchange: Exchange | None
    ) -> None:
        lease = exchange.lease if exchange is not None else None
        fields = exchange.call.fields if exchange is not None else {}
        model = fields.get("model")
        now, now_mono = time.perf_counter(), time.monotonic()
        trace.end(
            now_mono,
            route=self._route,
            request_id=client.request_id,
            outcome=outcome.name,
            status=client.status,
            model=model if isinstance(model, str) else "",
            stream=fields.get("stream") is True,
            first_byte=None if client.started_at is None else now_mono - (now - client.started_at),
            prefill=lease.prefill.url if lease else "",
            decode=lease.decode.url if lease else "",
            retries=exchange.tries - 1 if exchange is not None and exchange.tries else 0,
            error=str(outcome.error.code or "") if outcome.error is not None else "",
        )

    def _look(self, headers: list[tuple[bytes, bytes]], client: Client) -> str | None:
        """Take the client's request id; the value of its sticky header, None without one."""
        sticky = None
        for name, value in headers:
            if name == REQUEST_ID_HEADER:
                if not _REQUEST_ID.fullmatch(value):
                    raise bad_request(
                        "The header 'x-request-id' has to be 1 to 128 visible ASCII characters.",
                        param="x-request-id",
                    )
                client.request_id = value.decode("ascii")
            elif name == self._sticky and value:
                sticky = value.decode("latin-1")
        return sticky


def _draining() -> RouterError:
    return RouterError(
        503,
        "The router is ending and takes no new requests.",
        code="draining",
        headers=((b"connection", b"close"),),
    )


_NAMES: dict[str | int | None, str] = {
    "no_pair": "no_pair",
    "queue_full": "queue_full",
    "queue_timeout": "queue_timeout",
    "total_timeout": "total_timeout",
    "invalid_api_key": "unauthorized",
    "rate_limit_exceeded": "rate_limited",
}


async def _tell(client: Client, error: RouterError) -> None:
    try:
        await client.fail(error)
    except ClientGoneError:
        log.debug("request %s: client left before its error", client.request_id or "-")
