"""One request: a pair of engines for it, tries on further pairs, and the answer brought to the client.

The head of the answer is held back until decode's first bytes are there, so that a failure before them is a
plain HTTP error, or another try; after them it is the last event of the stream, without [DONE].
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from plait.router.answers import merge_prompt_logprobs
from plait.router.attempt import Attempt, Signal
from plait.router.body import Call, Tags, fresh_tags, splice
from plait.router.downstream import Client, ClientGoneError
from plait.router.errors import RouterError
from plait.router.headers import to_client
from plait.router.leg import FailureKind, Leg, LegError
from plait.router.placement.hashing import PrefixKeys
from plait.router.queue import Place
from plait.router.registry import Lease
from plait.router.samples.errors import MergeError, SampleFailed
from plait.router.samples.streams import StreamMerge
from plait.router.samples.whole import merge_whole
from plait.router.sse import EventCutter
from plait.router.state import RouterState
from plait.router.upstream.fetch import request_line

if TYPE_CHECKING:
    from plait.router.spans import RequestTrace

log = logging.getLogger("plait.router.requests")


class ShutdownError(Exception):
    """The router ends, and this request outlived the time it had for that."""


class Outcome(NamedTuple):
    """How a request ended. `name` is its label in the metrics.

    `told`: the client has had its answer; without it the caller owes one (`error`).
    """

    name: str
    told: bool
    error: RouterError | None = None


class Exchange:
    """One request from its parsed body to its end. `run` once.

    After it: `lease` is the last pair it had, `tries` how many, `queued` the seconds it waited.
    """

    def __init__(
        self,
        call: Call,
        client: Client,
        headers: bytes,
        keys: PrefixKeys | None,
        *,
        sticky: str | None,
        state: RouterState,
        trace: RequestTrace | None = None,
    ) -> None:
        self.call = call
        self._trace = trace
        self._client = client
        self._headers = headers
        self._keys = keys
        self._sticky = sticky
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._signal = Signal()
        self._attempt: Attempt | None = None
        self._stopped = False
        self._place: Place[Lease] | None = None
        # time.monotonic() and the loop's clock are one on Linux; the line and the legs use either.
        self._due = self._loop.time() + state.config.deadlines.total
        self._merges: list[EventCutter] = []
        self._merge: StreamMerge | None = None
        self._ended: set[int] = set()
        self._last_at = 0.0
        self.lease: Lease | None = None
        self.tries = 0
        self.queued = 0.0

    async def run(self) -> Outcome:
        """Run it to its end; engines are told before this returns.

        Raises RouterError where no pair can be had, and where the request is over its whole time.
        """
        self._client.on_gone(self._client_gone)
        self._state.lifecycle.add(self)
        try:
            return await self._run()
        except ClientGoneError:
            return Outcome("client_gone", told=True)
        except ShutdownError:
            error = RouterError(503, "The router is ending.", code="draining")
            return Outcome("draining", told=False, error=error)
        finally:
            self._client.on_gone(None)
            self._state.lifecycle.discard(self)
            if self._attempt is not None:
                self._attempt.close()

    def stop(self) -> None:
        """The router ends now: so does this request."""
        self._stopped = True
        if self._attempt is not None:
            self._attempt.close()
        if self._place is not None:
            self._place.fail(ShutdownError())
        self._client.stop_waiting()
        self._signal.set()

    async def _run(self) -> Outcome:
        exclude: set[int] = set()
        fresh = False
        while True:
            lease = await self._lease(exclude)
            outcome = await self._try(lease, fresh=fresh)
            if isinstance(outcome, Outcome):
                return outcome
            fresh = outcome.kind is FailureKind.STALE
            if not self._may_retry(outcome, exclude):
                return Outcome(f"{outcome.side}_failed", told=False, error=outcome.error)
            self._state.metrics.retried(outcome)
            log.info("request %s: another try", self._client.request_id)

    # A pair.

    async def _lease(self, exclude: set[int]) -> Lease:
        workers = self._state.workers
        if not workers.line.waiting:
            lease = self._pick(exclude)
            if lease is not None:
                return lease
        if not workers.any_pair:
            raise RouterError(
                503,
                "No prefill and decode engines with equal contracts are ready; GET /ready says why.",
                code="no_pair",
            )
        return await self._queue(exclude)

    def _pick(self, exclude: set[int]) -> Lease | None:
        return self._state.workers.pick(self._keys, legs=self.call.legs, sticky=self._sticky, exclude=exclude)

    async def _queue(self, exclude: set[int]) -> Lease:
        began = time.monotonic()
        place = self._place = self._state.workers.line.join(
            lambda: self._pick(exclude),
            size=len(self.call.body),
            priority=self.call.priority,
            deadline=min(began + self._state.config.deadlines.queue, self._due),
            # Those that must not go where they were are not in the way of those that may.
            kind="retry" if exclude else "",
        )
        try:
            lease = await place.future
        except asyncio.CancelledError:
            if place.future.done() and not place.future.cancelled() and place.future.exception() is None:
                place.future.result().give_back()
            place.fail(ShutdownError())
            raise
        finally:
            self._place = None
            now = time.monotonic()
            self.queued += now - began
            if self._trace is not None:
                self._trace.queued(began, now)
        if self._client.gone or self._stopped:
            lease.give_back()
            self._raise_if_over()
        return lease

    def _may_retry(self, failure: LegError, exclude: set[int]) -> bool:
        """Whether there is to be another try; adds the worker that failed to `exclude`."""
        attempt, state = self._attempt, self._state
        if attempt is None or attempt.guilty is None or not failure.retryable or self._client.started:
            return False
        if self._loop.time() >= self._due:
            return False
        if failure.kind is FailureKind.STALE:
            # The engine closed a kept connection just as it was used: no trouble, the same pair will do.
            return self.tries <= state.config.retries + 1
        exclude.add(attempt.guilty.worker.id)
        return self.tries <= state.config.retries and self._another_pair(exclude) and state.retries.spend()

    def _another_pair(self, exclude: set[int]) -> bool:
        """Whether a pair without the workers that failed is alive (busy or not)."""
        return any(
            pair.prefill.id not in exclude and pair.decode.id not in exclude
            for pair in self._state.workers.pairs()
        )

    # One try.

    async def _try(self, lease: Lease, *, fresh: bool) -> Outcome | LegError:
        """Run one try; its failure, or how the request ended."""
        state, signal = self._state, self._signal
        attempt = self._begin(lease, fresh=fresh)
        while True:
            await signal.wait()
            self._raise_if_over()
            failure = attempt.failure
            if failure is not None:
                if self._client.started:
                    await self._rest(attempt)
                return failure
            said = await self._deliver(attempt)
            if said is None:
                continue
            attempt.linger(state.config.deadlines.linger, now=self._loop.time())
            self._attempt = None
            return said

    def _begin(self, lease: Lease, *, fresh: bool) -> Attempt:
        state, call = self._state, self.call
        self.lease = lease
        self.tries += 1
        attempt = self._attempt = Attempt(
            lease,
            self._signal,
            aborts=state.aborts,
            judged=self._judged,
            done=state.metrics.leg_done,
            due=self._due,
        )
        state.metrics.prefix(matched=lease.matched, pages=lease.pages)
        prefill, decode = lease.prefill, lease.decode
        target = prefill.target
        deadlines, limit = state.config.deadlines, state.config.max_answer_bytes
        sends: list[tuple[Leg, Leg, bytes]] = []
        for sample in range(call.samples):
            tags: Tags = fresh_tags(call.batch)
            if not sample and not self._client.request_id:
                self._client.request_id = tags.request_id
            body = splice(
                call, tags, bootstrap_host=target.bootstrap_host, bootstrap_port=target.bootstrap_port
            )
            first = Leg(prefill, tags.rids, attempt, deadlines=deadlines, limit=limit, relay=False)
            last = Leg(decode, tags.rids, attempt, deadlines=deadlines, limit=limit, relay=True)
            attempt.prefills.append(first)
            attempt.decodes.append(last)
            sends.append((first, last, body))
        if call.samples > 1:
            self._merges = [EventCutter() for _ in range(call.samples)]
            self._merge = StreamMerge(call.route, call.samples, batch=call.batch)
            self._ended = set()
        state.watch.add(attempt)
        line = request_line("POST", call.route)
        for first, last, body in sends:
            rest = b"content-length: %d\r\n\r\n" % len(body)
            for leg in (first, last):
                own = self._headers if self._trace is None else self._traced(leg)
                leg.start(b"".join((line, leg.worker.host_line, own, rest)), body, fresh=fresh)
        return attempt

    def _traced(self, leg: Leg) -> bytes:
        """The headers of `leg` with its place in the trace."""
        assert self._trace is not None
        leg.trace = self._trace.leg(leg.side, leg.worker.url, start=time.monotonic(), attempt=self.tries - 1)
        return self._headers + b"".join(b"%b: %b\r\n" % pair for pair in leg.trace.headers())

    async def _deliver(self, attempt: Attempt) -> Outcome | None:
        """Bring to the client what decode has; how the request ended, None while there is more to come.

        Sets the attempt's failure (through the leg's) where decode's stream begins with an error.
        """
        if self.call.samples > 1:
            return await self._deliver_merged(attempt)
        state, client, decode = self._state, self._client, attempt.decodes[0]
        if decode.streamed:
            data = decode.take()
            done, said = decode.done, decode.said
            if data:
                if not client.started:
                    if said is not None:
                        decode.fail_said()
                        return None
                    await client.start(200, to_client(decode.headers))
                now = self._loop.time()
                if self._last_at:
                    state.metrics.gap(now - self._last_at)
                self._last_at = now
                await client.chunk(data)
            if said is not None:
                return await self._end_said(attempt, decode)
            if not done or attempt.failure is not None:
                return None
            if not client.started:
                await client.start(200, to_client(decode.headers))
            await client.end()
            return Outcome("ok", told=True)
        if not decode.done:
            return None
        answer = decode.answer
        if self.call.prompt_logprobs:
            prefill = attempt.prefills[0]
            if not prefill.done:
                return None
            try:
                answer = merge_prompt_logprobs(prefill.answer, answer)
            except ValueError as error:
                prefill.fail_broken(f"The prompt's logprobs cannot be merged: {error}.")
                return None
        await client.answer(200, to_client(decode.headers), answer)
        return Outcome("ok", told=True)

    async def _deliver_merged(self, attempt: Attempt) -> Outcome | None:
        """As `_deliver`, for several samples."""
        client, decodes, merge = self._client, attempt.decodes, self._merge
        assert merge is not None
        if not any(leg.streamed for leg in decodes):
            if not all(leg.done for leg in decodes):
                return None
            answers = [leg.answer for leg in decodes]
            if self.call.prompt_logprobs:
                if not all(leg.done for leg in attempt.prefills):
                    return None
                answers = [
                    merge_prompt_logprobs(first.answer, last.answer)
                    for first, last in zip(attempt.prefills, decodes, strict=True)
                ]
            try:
                answer = merge_whole(self.call.route, answers, batch=self.call.batch)
            except MergeError as error:
                decodes[error.sample].fail_broken(f"The samples cannot be merged: {error}.")
                return None
            await client.answer(200, to_client(decodes[0].headers), answer)
            return Outcome("ok", told=True)
        events: list[bytes] = []
        failed: Leg | None = None
        for sample, leg in enumerate(decodes):
            if sample in self._ended:
                continue
            done, said = leg.done, leg.said
            try:
                cutter = self._merges[sample]
                data = leg.take()
                payloads = cutter.feed(data) if data else []
                if done:
                    payloads += cutter.close()
                events += [merge.feed(sample, payload) for payload in payloads]
                if done and said is None:
                    self._ended.add(sample)
                    events.append(merge.end(sample))
            except SampleFailed as error:
                if leg.said is None:
                    leg.fail_broken(f"A sample failed: {error}.")
                    return None
                failed = leg
                break
            except MergeError as error:
                leg.fail_broken(f"The samples cannot be merged: {error}.")
                return None
        data = b"".join(events)
        if failed is not None and not client.started:
            failed.fail_said()
            return None
        if data:
            if not client.started:
                await client.start(200, to_client(decodes[0].headers))
            await client.chunk(data)
        if failed is not None:
            failed.fail_said()
            return None
        if attempt.failure is not None or not merge.ended:
            return None
        await client.end()
        return Outcome("ok", told=True)

    async def _end_said(self, attempt: Attempt, decode: Leg) -> Outcome:
        """The decode engine put an error into its stream, and the client has read it: no more comes."""
        error = decode.fail_said()
        await self._client.end()
        return Outcome(f"{error.side}_failed", told=True)

    async def _rest(self, attempt: Attempt) -> None:
        """What decode had sent before the failure, so that a broken stream is as long as it can be."""
        if self.call.samples == 1 and attempt.decodes[0].streamed:
            data = attempt.decodes[0].take()
            if data:
                await self._client.chunk(data)

    # Ends from outside.

    def _client_gone(self) -> None:
        if self._attempt is not None:
            self._attempt.close()
        if self._place is not None:
            self._place.fail(ClientGoneError("the client left"))
        self._signal.set()

    def _raise_if_over(self) -> None:
        if self._client.gone:
            raise ClientGoneError("the client left")
        if self._stopped:
            raise ShutdownError
        if self._attempt is not None and self._attempt.late:
            seconds = self._state.config.deadlines.total
            raise RouterError(504, f"The request was not done within {seconds:g} s.", code="total_timeout")

    def _judged(self, leg: Leg, error: LegError) -> None:
        self._state.metrics.leg_failed(error, leg.worker)
        if error.kind is FailureKind.REFUSED:
            leg.worker.out("it refused a connection")
        log.warning("request %s: %s %s: %s", self._client.request_id, error.side, leg.worker.url, error)
