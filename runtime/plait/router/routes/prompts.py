"""The routes that take a prompt: from the bytes of a client's request to an exchange, and its record."""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING

from plait.router.body import Route, fresh_id, parse
from plait.router.errors import RouterError, bad_request
from plait.router.exchange import Exchange, Outcome
from plait.router.headers import to_engine
from plait.router.incoming import Incoming, PromptHandler
from plait.router.placement.hashing import prefix_keys
from plait.router.placement.policy import Policy
from plait.router.state import RouterState
from plait.router.tracing import TRACE_HEADERS

if TYPE_CHECKING:
    from plait.router.spans import RequestTrace

log = logging.getLogger("plait.router.requests")

_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_JSON = re.compile(rb"application/(?:[\w.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)


class PromptRoute(PromptHandler):
    """One prompt route."""

    def __init__(self, route: Route, state: RouterState) -> None:
        self.max_body = state.config.max_body_bytes
        self._route = route
        self._state = state
        config = state.config
        self._sticky = config.sticky_header.lower().encode()
        self._hashes = Policy.PREFIX_AWARE in (config.policy, config.decode_policy)
        self._metrics = state.metrics.route(route)

    def opened(self, incoming: Incoming) -> None:
        """Look at the head. Raises RouterError."""
        incoming.arrived_at = time.perf_counter()
        incoming.request_id = fresh_id()
        sticky = self._sticky
        for name, value in incoming.headers:
            if name == b"x-request-id":
                if not _REQUEST_ID.fullmatch(value):
                    raise bad_request(
                        "The header 'x-request-id' has to be 1 to 128 visible ASCII characters.",
                        param="x-request-id",
                    )
                incoming.request_id, incoming.own_id = value.decode("ascii"), True
            elif name == sticky:
                incoming.sticky = value.decode("latin-1") or None
            elif name == b"content-type":
                if value != b"application/json" and not _JSON.fullmatch(value):
                    raise RouterError(
                        415, "Send the request body as 'Content-Type: application/json'.", code="content_type"
                    )
            elif name == b"content-encoding" and value.lower() not in (b"identity", b""):
                raise RouterError(415, "Send the request body without a Content-Encoding.", code="encoding")
        if incoming.method != b"POST":
            raise RouterError(
                405,
                f"{incoming.method.decode('latin-1')} {self._route}: wrong method.",
                code="wrong_method",
                headers=((b"allow", b"POST"),),
            )
        if self._state.lifecycle.draining:
            raise _draining()
        if self._state.keys is not None:
            self._state.keys.admit(incoming.headers)

    def handle(self, incoming: Incoming) -> None:
        """Begin the exchange, or refuse the request."""
        state = self._state
        incoming.arrived_at = time.perf_counter()
        trace = None
        body, incoming.body = incoming.body, b""
        try:
            if state.tracer.on:
                trace = state.tracer.request(incoming.headers, start=time.monotonic())
            lines = to_engine(
                incoming.headers,
                fixed=state.engine_lines,
                drop=() if trace is None else TRACE_HEADERS,
            )
            call = parse(
                body,
                self._route,
                max_batch=state.config.max_batch,
                max_samples=state.config.max_samples,
            )
            keys = prefix_keys(call.fields, self._route, body=body) if self._hashes else None
            state.retries.earn()
            exchange = Exchange(
                call,
                incoming,
                lines,
                keys,
                sticky=incoming.sticky,
                state=state,
                ended=self._ended if trace is None else lambda e, o: self._ended_traced(e, o, trace),
                trace=trace,
            )
        except RouterError as error:
            self.refused(incoming, error)
            incoming.fail(error)
        except Exception:
            log.exception("request %s: the router failed", incoming.request_id)
            fault = RouterError(500, "The router failed.", code="router_fault")
            self.refused(incoming, fault)
            incoming.fail(fault)
        else:
            exchange.begin()

    def refused(self, incoming: Incoming, error: RouterError) -> None:
        """It came to no exchange."""
        name = _NAMES.get(error.code, "refused")
        now = time.perf_counter()
        self._metrics.ended(name, arrived=incoming.arrived_at or now, first=None, now=now)

    def _ended(self, exchange: Exchange, outcome: Outcome) -> None:
        client = exchange.client
        self._metrics.ended(
            outcome.name, arrived=client.arrived_at, first=client.started_at, now=time.perf_counter()
        )
        self._metrics.exchanged(exchange)

    def _ended_traced(self, exchange: Exchange, outcome: Outcome, trace: RequestTrace) -> None:
        self._ended(exchange, outcome)
        lease, client, fields = exchange.lease, exchange.client, exchange.call.fields
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
            retries=max(exchange.tries - 1, 0),
            error=str(outcome.error.code or "") if outcome.error is not None else "",
        )


def _draining() -> RouterError:
    return RouterError(
        503,
        "The router is ending and takes no new requests.",
        code="draining",
        closes=True,
    )


_NAMES: dict[str | int | None, str] = {
    "draining": "draining",
    "invalid_api_key": "unauthorized",
    "rate_limit_exceeded": "rate_limited",
    "router_fault": "fault",
}
