"""The two legs of a request, run together: the answer is the decode leg's, and both end together.

Both engines get the same body at once. Whatever goes wrong on one side (refused, error status, error inside
a 200, broken off, late) or with the client (left, or reads nothing) ends both legs at once: connections are
closed, and each engine is told to abort. Nothing here waits without a deadline.

The head of the answer is held back until decode's first bytes are there, so that a failure before them is a
plain HTTP error; after them it is the last event of the stream, without [DONE].
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

import aiohttp

from plait.router.aborts import Aborts
from plait.router.answers import EngineError, hidden_error, merge_prompt_logprobs
from plait.router.config import RouterConfig
from plait.router.downstream import Client, ClientGoneError
from plait.router.errors import RouterError
from plait.router.headers import to_client
from plait.router.pairing import Side
from plait.router.sse import CONTENT_TYPE, EventReader
from plait.router.upstream import Clock, FailureKind, Leg, LegError, read_all, sent

log = logging.getLogger("plait.router.legs")


class ShutdownError(Exception):
    """The router ends, and this request outlived the time it had for that."""


class Outcome(NamedTuple):
    """How a request ended. `name` is its label in the metrics; `failure` the leg that ended it, if one did.

    `told`: the client has had its answer; without it the caller owes one (`error`).
    """

    name: str
    told: bool
    failure: LegError | None = None
    error: RouterError | None = None


class Legs:
    """One request's two legs. `run` once."""

    def __init__(
        self,
        prefill: Leg,
        decode: Leg,
        client: Client,
        *,
        session: aiohttp.ClientSession,
        config: RouterConfig,
        aborts: Aborts,
        merge: bool = False,
    ) -> None:
        self._prefill = prefill
        self._decode = decode
        self._client = client
        self._session = session
        self._config = config
        self._aborts = aborts
        self._merge = merge

    async def run(self, stop: asyncio.Future[None]) -> Outcome:
        """Run both legs until the client has its answer or a failure has ended them.

        `stop`, when done, ends them as a shutdown does. Engines are told to abort before this returns.
        """
        prefill = asyncio.create_task(self._run_prefill(), name="prefill")
        decode = asyncio.create_task(self._run_decode(prefill), name="decode")
        # A leg counts on its worker until it has ended, which for prefill may be after this returns.
        self._prefill.worker.hold_for(prefill)
        self._decode.worker.hold_for(decode)
        gone = asyncio.create_task(self._client.gone(), name="client")
        try:
            failure = await self._watch(prefill, decode, gone, stop)
        except asyncio.CancelledError:
            self._abort_both()
            await _cancel(prefill, decode, gone)
            raise
        if failure is None:
            # Decode has everything, the client too. Prefill's own answer may still be on its way.
            await _cancel(gone)
            self._aborts.linger(self._prefill, prefill, seconds=self._config.deadlines.linger)
            said = decode.result()
            if said is None:
                return Outcome("ok", told=True)
            # The decode engine itself ended the stream with an error, and the client has read it.
            self._abort_both()
            return Outcome(
                "decode_failed", told=True, failure=LegError.said(Side.DECODE, said, kind=FailureKind.ABORTED)
            )
        self._abort_both()
        await _cancel(prefill, decode, gone)
        return self._outcome(failure)

    async def _watch(
        self,
        prefill: asyncio.Task[bytes],
        decode: asyncio.Task[EngineError | None],
        gone: asyncio.Task[None],
        stop: asyncio.Future[None],
    ) -> BaseException | None:
        """Wait for decode's end or the first failure; the failure, or None when all is well."""
        pending: set[asyncio.Future[Any]] = {prefill, decode, gone, stop}
        while True:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if decode in done and decode.exception() is None:
                return None
            failures = [t.exception() for t in (decode, prefill) if t in done and t.exception() is not None]
            if failures:
                # Where both fail together, the one that blames the request says more than a broken line.
                return min((f for f in failures if f is not None), key=_blames_engine)
            if gone in done:
                return ClientGoneError("the client left")
            if stop in done:
                return ShutdownError("the router ends")

    def _abort_both(self) -> None:
        for leg in (self._prefill, self._decode):
            self._aborts.send(leg)

    def _outcome(self, failure: BaseException) -> Outcome:
        if isinstance(failure, LegError):
            return Outcome(f"{failure.side}_failed", False, failure, failure.error)
        if isinstance(failure, ClientGoneError):
            return Outcome("client_gone", told=True)
        if isinstance(failure, ShutdownError):
            return Outcome(
                "draining", False, None, RouterError(503, "The router is ending.", code="draining")
            )
        raise failure

    async def _run_prefill(self) -> bytes:
        """Prefill's whole answer (empty when it was streamed). Raises LegError."""
        leg, deadlines = self._prefill, self._config.deadlines
        async with sent(self._session, leg, self._config) as (response, clock):
            if response.content_type != CONTENT_TYPE:
                answer = await read_all(
                    response,
                    clock,
                    side=leg.side,
                    idle=deadlines.idle,
                    limit=self._config.max_answer_bytes,
                )
                _raise_hidden(leg.side, [answer])
                return answer if self._merge else b""
            events = EventReader()
            async for chunk in response.content.iter_any():
                clock.allow(deadlines.idle, "the next event of its stream")
                _raise_hidden(leg.side, events.feed(chunk))
            _raise_hidden(leg.side, events.close())
            if not events.done:
                raise _cut_off(leg.side)
            return b""

    async def _run_decode(self, prefill: asyncio.Task[bytes]) -> EngineError | None:
        """Bring decode's answer to the client.

        Returns the error that decode itself put into a stream which the client has read, else None.
        Raises LegError or ClientGoneError.
        """
        leg, deadlines = self._decode, self._config.deadlines
        async with sent(self._session, leg, self._config) as (response, clock):
            headers = to_client(response.headers)
            if response.content_type == CONTENT_TYPE:
                return await self._relay(response, clock, headers)
            answer = await read_all(
                response, clock, side=leg.side, idle=deadlines.idle, limit=self._config.max_answer_bytes
            )
            clock.stop()
        if self._merge:
            # The watcher sees prefill's own failure; here only its answer is of interest.
            try:
                answer = merge_prompt_logprobs(await asyncio.shield(prefill), answer)
            except ValueError as error:
                raise LegError(
                    Side.PREFILL, FailureKind.BROKEN, f"The prompt's logprobs cannot be merged: {error}."
                ) from error
        await self._client.answer(200, headers, answer)
        return None

    async def _relay(
        self,
        response: aiohttp.ClientResponse,
        clock: Clock,
        headers: Iterable[tuple[bytes, bytes]],
    ) -> EngineError | None:
        """Pass decode's stream on byte for byte, each part once the client has taken the one before."""
        events = EventReader()
        said: EngineError | None = None
        async for chunk in response.content.iter_any():
            said = said or next(filter(None, map(hidden_error, events.feed(chunk))), None)
            if not self._client.started:
                if said is not None:
                    raise LegError.said(Side.DECODE, said, kind=FailureKind.ABORTED)
                await self._client.start(200, headers)
            clock.stop()
            await self._client.chunk(chunk)
            clock.allow(self._config.deadlines.idle, "the next event of its stream")
        said = said or next(filter(None, map(hidden_error, events.close())), None)
        if not events.done and said is None:
            raise _cut_off(Side.DECODE)
        clock.stop()
        await self._client.end()
        return said


def _raise_hidden(side: Side, payloads: Iterable[bytes]) -> None:
    for payload in payloads:
        if said := hidden_error(payload):
            raise LegError.said(side, said, kind=FailureKind.ABORTED)


def _cut_off(side: Side) -> LegError:
    return LegError(side, FailureKind.BROKEN, f"The {side} engine's stream ended before it was complete.")


def _blames_engine(failure: BaseException) -> bool:
    return not isinstance(failure, LegError) or failure.to_blame


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
