"""One try of a request on one pair of engines: all its legs, which end together.

Whatever goes wrong on one leg closes all others in the same turn of the loop and tells their engines to
abort; the request's task only hears of it afterwards. A prefill leg that is still due when decode has
finished lingers here, without its request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from math import inf

from plait.router.aborts import Aborts
from plait.router.leg import FailureKind, Leg, LegError
from plait.router.pairing import Side
from plait.router.registry import Lease

log = logging.getLogger("plait.router.attempt")

# Nothing was sent, or the answer has been read: there is nothing to abort.
_NO_ABORT = (FailureKind.REFUSED, FailureKind.STATUS)


class Signal:
    """Wakes one task, as often as it is set; several sets before a wait are one."""

    __slots__ = ("_future", "_is_set", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self._is_set = False

    def set(self) -> None:
        """Wake the task that waits, or let its next wait return at once."""
        self._is_set = True
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    async def wait(self) -> None:
        """Return once set."""
        if not self._is_set:
            future = self._future = self._loop.create_future()
            try:
                await future
            finally:
                self._future = None
        self._is_set = False


class Attempt:
    """The legs of one try. `legs` are set by `begin`; a sample is a pair of legs at the same place.

    `failure`: of the leg that ended the attempt; `guilty` is that leg. `judged` is called once for each
    failed leg, `done` for each that has answered in full. `due`: loop time at which it ends whatever its legs
    do, `late` then, and nobody's fault.
    """

    def __init__(
        self,
        lease: Lease,
        signal: Signal,
        *,
        aborts: Aborts,
        judged: Callable[[Leg, LegError], None],
        done: Callable[[Leg], None],
        due: float = inf,
    ) -> None:
        self.lease = lease
        self.due = due
        self.late = False
        self.prefills: list[Leg] = []
        self.decodes: list[Leg] = []
        self.failure: LegError | None = None
        self.guilty: Leg | None = None
        self._signal = signal
        self._aborts = aborts
        self._judged = judged
        self._done = done
        self._lingering = False
        self._settled: set[Side] = set()

    @property
    def legs(self) -> Iterable[Leg]:
        """All of them."""
        return (*self.prefills, *self.decodes)

    @property
    def over(self) -> bool:
        """Whether no leg is open."""
        return not any(leg.open for leg in self.prefills) and not any(leg.open for leg in self.decodes)

    def close(self) -> None:
        """End all legs that are open, and tell their engines to abort. Says nothing about the workers."""
        for leg in (*self.prefills, *self.decodes):
            if leg.open:
                self._aborts.send(leg)
                leg.close()
        self._settle()

    def linger(self, seconds: float, *, now: float) -> None:
        """Decode has finished: prefill's legs get `seconds` to end by themselves."""
        self._lingering = True
        for leg in self.prefills:
            if leg.open:
                leg.due = min(leg.due, now + seconds)
                leg.waits_for = "its answer, due after decode's"
        self._settle()

    def check(self, now: float) -> None:
        """Expire the legs whose deadline has passed; prefill's first, for decode waits for prefill."""
        if self.due <= now and not self._lingering and self.failure is None:
            self.late = True
            self.close()
            self._signal.set()
            return
        for legs in (self.prefills, self.decodes):
            for leg in legs:
                if leg.due <= now:
                    leg.expire()
                    if not self._lingering:
                        return

    # leg.LegOwner

    def leg_moved(self, leg: Leg) -> None:
        if leg.done:
            self._done(leg)
        if self._lingering:
            self._settle()
        else:
            self._signal.set()

    def leg_failed(self, leg: Leg) -> None:
        error = leg.failure
        assert error is not None
        if error.kind not in _NO_ABORT:
            self._aborts.send(leg)
        if self._lingering:
            # The client has its answer; the worker is still to blame.
            self._judged(leg, error)
            self._settle()
            return
        if self.failure is not None:
            return
        guilty = self._to_blame(leg)
        assert guilty.failure is not None
        self.failure, self.guilty = guilty.failure, guilty
        self._judged(guilty, guilty.failure)
        self.close()
        self._signal.set()

    def _to_blame(self, leg: Leg) -> Leg:
        """`leg`, or prefill's of the same sample where decode was late only because that has not answered."""
        if leg.side is Side.DECODE and leg.failure is not None and leg.failure.kind is FailureKind.TIMEOUT:
            prefill = self.prefills[self.decodes.index(leg)]
            if prefill.open and not leg.first_at:
                self._aborts.send(prefill)
                prefill.close()
                message = f"The prefill engine is late: waited for {prefill.waits_for}."
                prefill.failure = LegError(Side.PREFILL, FailureKind.TIMEOUT, message)
                leg.failure = None  # nor does its breaker hear of it
                return prefill
        return leg

    # Breakers: each worker's hears once what this attempt says about it.

    def _settle(self) -> None:
        """The attempt is over, or only its prefill legs are left."""
        for side in (Side.DECODE, Side.PREFILL):
            legs = self.decodes if side is Side.DECODE else self.prefills
            if side in self._settled or (self._lingering and any(leg.open for leg in legs)):
                continue
            self._settled.add(side)
            lease = self.lease
            if side is Side.PREFILL:
                breaker, ticket = lease.prefill.breaker, lease.prefill_ticket
            else:
                breaker, ticket = lease.decode.breaker, lease.decode_ticket
            failed = [leg.failure for leg in legs if leg.failure is not None]
            if any(error.to_blame for error in failed):
                breaker.failed(ticket)
            elif not all(leg.done or leg.status for leg in legs):
                # It had no time to show anything.
                breaker.abandoned(ticket)
            else:
                breaker.succeeded(ticket)


class Watch:
    """Keeps the deadlines of all attempts: one tick for all, instead of timers for each leg and chunk."""

    TICK = 0.05

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._attempts: set[Attempt] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, attempt: Attempt) -> None:
        """Watch it until it is over (or `drop`)."""
        self._attempts.add(attempt)
        if self._timer is None:
            self._timer = self._loop.call_later(self.TICK, self._tick)

    def drop(self, attempt: Attempt) -> None:
        """Watch it no more."""
        self._attempts.discard(attempt)

    def close(self) -> None:
        """End all attempts that still linger."""
        for attempt in list(self._attempts):
            attempt.close()
        self._attempts.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now = self._loop.time()
        self._timer = None
        for attempt in list(self._attempts):
            try:
                attempt.check(now)
            except Exception:  # one broken attempt must not end the deadlines of all others
                log.exception("an attempt's deadline could not be kept")
            if attempt.over:
                self._attempts.discard(attempt)
        if self._attempts:
            self._timer = self._loop.call_later(self.TICK, self._tick)
