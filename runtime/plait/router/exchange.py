"""One request: a pair of engines for it, tries on further pairs, and the answer brought to the client.

All of it runs in callbacks: of the engines' connections, the client's, the waiting line and the watch over
deadlines. `_end` is reached exactly once. The head of the answer is held back until decode's first bytes are
there, so that a failure before them is a plain HTTP error, or another try; after them it is the last event of
the stream, without [DONE].
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from plait.router.answers import merge_prompt_logprobs
from plait.router.attempt import Attempt, AttemptOwner
from plait.router.body import Buffer, Call, fresh_tags, splice
from plait.router.errors import RouterError
from plait.router.headers import to_client
from plait.router.incoming import Incoming
from plait.router.leg import FailureKind, Leg, LegError
from plait.router.merging import Merging
from plait.router.placement.hashing import PrefixKeys
from plait.router.queue import Place
from plait.router.registry import Lease
from plait.router.state import RouterState
from plait.router.upstream.fetch import request_line

if TYPE_CHECKING:
    from plait.router.spans import RequestTrace

log = logging.getLogger("plait.router.requests")


class Outcome(NamedTuple):
    """How a request ended. `name` is its label in the metrics; `error`, if any, what the client was told."""

    name: str
    error: RouterError | None = None


class Exchange(AttemptOwner):
    """One request from its parsed body to its end, of which `ended` hears.

    Then `lease` is the last pair it had, `tries` how many, `queued` the seconds it waited.
    """

    lease: Lease | None = None
    tries = 0
    queued = 0.0
    over = False
    _attempt: Attempt | None = None
    _place: Place[Lease] | None = None
    _joined = 0.0
    _last_at = 0.0  # when the last piece of the stream came
    _stalled_at = 0.0  # since when the client takes nothing; 0: it does
    _fresh = False  # the next try goes on new connections
    _told = False  # the client has read decode's own error
    _merging: Merging | None = None

    def __init__(
        self,
        call: Call,
        client: Incoming,
        headers: bytes,
        keys: PrefixKeys | None,
        *,
        sticky: str | None,
        state: RouterState,
        ended: Callable[[Exchange, Outcome], None],
        trace: RequestTrace | None = None,
    ) -> None:
        self.call = call.light()
        self.client = client
        self._headers = headers
        self._keys = keys
        self._sticky = sticky
        self._state = state
        self._ended = ended
        self._trace = trace
        self._gap = state.metrics.gap
        self._exclude: set[int] = set()
        self._due = state.watch.now() + state.config.deadlines.total

    def begin(self) -> None:
        """Find a pair, and send."""
        client = self.client
        client.on_gone = self._client_gone
        client.on_drained = self._client_drained
        self._state.lifecycle.add(self)
        self._state.watch.add(self)
        try:
            self._next_try()
        except Exception as error:
            self._fault(error)

    # Ends from outside.

    def stop(self) -> None:
        """The router ends now: so does this request."""
        if self.client.write_paused:
            self.client.abort()
        self._end(Outcome("draining", RouterError(503, "The router is ending.", code="draining")))

    def check(self, now: float) -> None:
        """Keep the deadlines (attempt.Watched)."""
        if self.over:
            return
        if now >= self._due:
            seconds = self._state.config.deadlines.total
            message = f"The request was not done within {seconds:g} s."
            self._end(Outcome("total_timeout", RouterError(504, message, code="total_timeout")))
            return
        if self._stalled_at and now - self._stalled_at > self._state.config.deadlines.client_stall:
            # What is buffered would keep the connection, and its memory, for as long as the client likes.
            self.client.abort()
            self._end(Outcome("client_gone"))
            return
        if self._attempt is not None:
            self._attempt.check(now)

    def close(self) -> None:
        """End without a word to the client (attempt.Watched)."""
        self._end(Outcome("draining"))

    def _client_gone(self) -> None:
        self._end(Outcome("client_gone"))

    def _client_drained(self) -> None:
        self._stalled_at = 0.0
        if self._attempt is not None:
            self.attempt_moved()

    # A pair.

    def _next_try(self) -> None:
        lease = self._pick() if not self._state.workers.line.waiting else None
        if lease is not None:
            self._try(lease)
            return
        self._state.workers.must_have_pair()
        self._joined = time.monotonic()
        self._place = self._state.workers.line.join(
            self._pick,
            size=len(self.call.body),
            priority=self.call.priority,
            deadline=self._joined + self._state.config.deadlines.queue,
            # Those that must not go where they were are not in the way of those that may.
            kind="retry" if self._exclude else "",
        )
        self._place.future.add_done_callback(self._placed)

    def _pick(self) -> Lease | None:
        return self._state.workers.pick(
            self._keys, legs=self.call.legs, sticky=self._sticky, exclude=self._exclude
        )

    def _placed(self, future: asyncio.Future[Lease]) -> None:
        """The line has given a pair, or an error."""
        self._place = None
        now = time.monotonic()
        self.queued += now - self._joined
        if self._trace is not None:
            self._trace.queued(self._joined, now)
        error = future.exception()
        if self.over:
            if error is None:
                future.result().give_back()
        elif error is not None:
            self._fault(error)
        else:
            try:
                self._try(future.result())
            except Exception as fault:
                self._fault(fault)

    def _may_retry(self, failure: LegError) -> bool:
        """Whether there is to be another try; excludes the worker that failed from it."""
        attempt, state = self._attempt, self._state
        if attempt is None or attempt.guilty is None or not failure.retryable or self.client.started:
            return False
        if failure.kind is FailureKind.STALE:
            # The engine closed a kept connection just as it was used: no trouble, the same pair will do.
            return self.tries <= state.config.retries + 1
        self._exclude.add(attempt.guilty.worker.id)
        return (
            self.tries <= state.config.retries
            and state.workers.pair_without(self._exclude)
            and state.retries.spend()
        )

    # One try.

    def _try(self, lease: Lease) -> None:
        """Send to both engines."""
        state, call, client = self._state, self.call, self.client
        self.lease = lease
        self.tries += 1
        attempt = self._attempt = Attempt(lease, self, aborts=state.aborts)
        prefill, decode = lease.prefill, lease.decode
        target = prefill.target
        deadlines, limit, clock = state.config.deadlines, state.config.max_answer_bytes, state.watch.now
        work = lease.work * (call.batch or 1)
        if call.samples > 1:
            self._merging = Merging(call)
        line = request_line(call.route)
        for sample in range(call.samples):
            # The first prompt's request carries the router's id for the request to the engines' logs.
            first = self.tries == 1 and not sample and not client.own_id
            tags = fresh_tags(call.batch, client.request_id if first else None)
            body = splice(
                call, tags, bootstrap_host=target.bootstrap_host, bootstrap_port=target.bootstrap_port
            )
            rest = b"content-length: %d\r\n\r\n" % sum(map(len, body))
            legs = (
                Leg(prefill, tags.rids, attempt, deadlines, limit, clock, relay=False, work=work),
                Leg(decode, tags.rids, attempt, deadlines, limit, clock, relay=True),
            )
            attempt.prefills.append(legs[0])
            attempt.decodes.append(legs[1])
            for leg in legs:
                own = self._headers if self._trace is None else self._traced(leg)
                head = b"".join((line, leg.worker.host_line, own, rest))
                pieces: list[Buffer] = [head + body[0]] if len(body) == 1 else [head, *body]
                leg.start(pieces, fresh=self._fresh)
        state.metrics.prefix(matched=lease.matched, pages=lease.pages)

    def _traced(self, leg: Leg) -> bytes:
        """The headers of `leg` with its place in the trace."""
        assert self._trace is not None
        leg.trace = self._trace.leg(leg.side, leg.worker.url, start=time.monotonic(), attempt=self.tries - 1)
        return self._headers + b"".join(b"%b: %b\r\n" % pair for pair in leg.trace.headers())

    # attempt.AttemptOwner

    def attempt_moved(self) -> None:
        attempt = self._attempt
        if attempt is None or attempt.failure is not None:
            return
        try:
            if self.client.write_paused:
                if not self._stalled_at:
                    self._stalled_at = self._state.watch.now()
            elif self._merging is not None:
                self._deliver_merged(attempt, self._merging)
            else:
                self._deliver(attempt)
        except Exception as error:
            self._fault(error)

    def attempt_failed(self) -> None:
        attempt = self._attempt
        if attempt is None or attempt.failure is None:
            return
        failure = attempt.failure
        name = f"{failure.side}_failed"
        try:
            if self._told:
                self.client.end()
                self._end(Outcome(name))
            elif self._may_retry(failure):
                self._state.metrics.retried(failure)
                log.info("request %s: another try", self.client.request_id)
                attempt.dissolve()
                self._fresh = failure.kind is FailureKind.STALE
                self._next_try()
            else:
                if self.client.started and self._merging is None and attempt.decodes[0].said is None:
                    # A stream that breaks is as long as it can be.
                    self.client.chunk(attempt.decodes[0].take())
                self._end(Outcome(name, failure.error))
        except Exception as error:
            self._fault(error)

    def leg_judged(self, leg: Leg, error: LegError) -> None:
        self._state.metrics.leg_failed(error, leg.worker)
        if error.kind is FailureKind.REFUSED:
            leg.worker.out("it refused a connection")
        log.warning("request %s: %s %s: %s", self.client.request_id, error.side, leg.worker.url, error.logged)

    def attempt_over(self, attempt: Attempt) -> None:
        self._state.watch.drop(attempt)

    def leg_done(self, leg: Leg) -> None:
        self._state.metrics.leg_done(leg)

    # The answer.

    def _deliver(self, attempt: Attempt) -> None:
        """Bring to the client what decode has."""
        client, decode = self.client, attempt.decodes[0]
        if decode.streamed:
            data, said, done = decode.take(), decode.said, decode.done
            if data or done:
                if not client.response_started:
                    if said is not None:
                        decode.fail_said()
                        return
                    client.start(200, to_client(decode.headers))
                if data:
                    now = time.monotonic()
                    if self._last_at:
                        self._gap(now - self._last_at)
                    self._last_at = now
                    client.chunk(data)
                if said is not None:
                    # The decode engine put an error into its stream, and the client has it: no more comes.
                    # An end that only says "abort" is no error to clients: they are told one behind it.
                    self._told = said.plain
                    decode.fail_said()
                elif done:
                    client.end()
                    self._end(_OK)
        elif decode.done:
            answer = decode.answer
            if self.call.prompt_logprobs:
                prefill = attempt.prefills[0]
                if not prefill.done:
                    return
                try:
                    answer = merge_prompt_logprobs(prefill.answer, answer)
                except ValueError as error:
                    prefill.fail_broken(f"The prompt's logprobs cannot be merged: {error}.")
                    return
            client.answer(200, to_client(decode.headers), answer)
            self._end(_OK)

    def _deliver_merged(self, attempt: Attempt, merging: Merging) -> None:
        """As `_deliver`, for several samples."""
        client, decodes = self.client, attempt.decodes
        if not any(leg.streamed for leg in decodes):
            answer = merging.whole(attempt.prefills, decodes)
            if answer is not None:
                client.answer(200, to_client(decodes[0].headers), answer)
                self._end(_OK)
            return
        data = merging.events(decodes)
        if attempt.failure is not None:
            return
        if merging.failed is not None and not client.started:
            # What the others have said so far is not worth the plain error, or the further try.
            merging.failed.fail_said()
            return
        if data:
            if not client.started:
                client.start(200, to_client(decodes[0].headers))
            client.chunk(data)
        if merging.failed is not None:
            merging.failed.fail_said()
        elif merging.ended:
            client.end()
            self._end(_OK)

    # The end.

    def _fault(self, error: BaseException) -> None:
        if isinstance(error, RouterError):
            self._end(Outcome(_NAMES.get(error.code, "refused"), error))
            return
        log.error("request %s: the router failed", self.client.request_id, exc_info=error)
        self._end(Outcome("fault", RouterError(500, "The router failed.", code="router_fault")))

    def _end(self, outcome: Outcome) -> None:
        """The request is over; what its engines still do is ended, or lingers."""
        if self.over:
            return
        self.over = True
        state, client, attempt = self._state, self.client, self._attempt
        client.on_gone = client.on_drained = None
        if self._place is not None:
            self._place.fail(_OverError())
        self._attempt = None
        if attempt is not None:
            if outcome is _OK:
                attempt.linger(state.config.deadlines.linger, now=state.watch.now())
                if attempt.over:
                    attempt.dissolve()
                else:
                    state.watch.add(attempt)
            else:
                attempt.close()
                attempt.dissolve()
        state.watch.drop(self)
        state.lifecycle.discard(self)
        if outcome.error is not None:
            client.fail(outcome.error)
        self._ended(self, outcome)


class _OverError(Exception):
    """The request that waits is over."""


_OK = Outcome("ok")
_NAMES: dict[str | int | None, str] = {
    "no_pair": "no_pair",
    "queue_full": "queue_full",
    "queue_timeout": "queue_timeout",
}
