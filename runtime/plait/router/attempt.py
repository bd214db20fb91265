"""One try of a request on one pair of engines: all its legs, which end together.

Whatever goes wrong on one leg closes all others in the same turn of the loop and tells their engines to
abort; the request hears of it afterwards. A prefill leg that is still due when decode has finished lingers
here, without its request.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from plait.router.aborts import Aborts
from plait.router.breaker import Breaker
from plait.router.leg import FailureKind, Leg, LegError, LegOwner
from plait.router.pairing import Side
from plait.router.registry import Lease
from plait.router.standstill import Deadline

log = logging.getLogger("plait.router.attempt")

# Nothing was sent, or the answer has been read: there is nothing to abort.
_NO_ABORT = (FailureKind.REFUSED, FailureKind.STATUS)


class AttemptOwner:
    """The request whose attempt it is."""

    def attempt_moved(self) -> None:
        """A leg has something to take, or has answered."""
        raise NotImplementedError

    def attempt_failed(self) -> None:
        """`failure` is set, and all legs are closed."""
        raise NotImplementedError

    def leg_judged(self, leg: Leg, error: LegError) -> None:
        """A leg failed, while the request was under way or after it."""
        raise NotImplementedError

    def leg_done(self, leg: Leg) -> None:
        """A leg has answered in full."""
        raise NotImplementedError

    def attempt_over(self, attempt: Attempt) -> None:
        """An attempt that lingered is over."""
        raise NotImplementedError


class Attempt(LegOwner):
    """The legs of one try, put in by its owner; a sample is a pair of legs at the same place.

    `failure`: of the leg that ended the attempt; `guilty` is that leg.
    """

    def __init__(self, lease: Lease, owner: AttemptOwner, *, aborts: Aborts) -> None:
        self.lease = lease
        self.prefills: list[Leg] = []
        self.decodes: list[Leg] = []
        self.failure: LegError | None = None
        self.guilty: Leg | None = None
        self._owner = owner
        self._aborts = aborts
        self._lingering = False
        self._prefill_told = self._decode_told = False  # what this attempt says about them

    @property
    def over(self) -> bool:
        """Whether no leg is open."""
        return not any(leg.open for leg in self.decodes) and not any(leg.open for leg in self.prefills)

    def close(self) -> None:
        """End all legs that are open, and tell their engines to abort."""
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
        for legs in (self.prefills, self.decodes):
            for leg in legs:
                if leg.due <= now:
                    leg.expire()
                    if not self._lingering:
                        return

    def dissolve(self) -> None:
        """Over, and nobody will look at it: leave no cycle for the garbage collector."""
        for leg in self.prefills:
            leg.dissolve()
        for leg in self.decodes:
            leg.dissolve()

    # leg.LegOwner

    def leg_moved(self, leg: Leg) -> None:
        if leg.done:
            self._owner.leg_done(leg)
        if self._lingering:
            self._settle()
            if self.over:
                self._over()
        else:
            self._owner.attempt_moved()

    def leg_failed(self, leg: Leg) -> None:
        error = leg.failure
        assert error is not None
        if error.kind not in _NO_ABORT:
            self._aborts.send(leg)
        if self._lingering:
            # The client has its answer; the worker is still to blame.
            self._owner.leg_judged(leg, error)
            self._settle()
            if self.over:
                self._over()
            return
        if self.failure is not None:
            return
        guilty = self._to_blame(leg)
        assert guilty.failure is not None
        self.failure, self.guilty = guilty.failure, guilty
        self._owner.leg_judged(guilty, guilty.failure)
        self.close()
        self._owner.attempt_failed()

    def _over(self) -> None:
        self.dissolve()
        self._owner.attempt_over(self)

    def _to_blame(self, leg: Leg) -> Leg:
        """`leg`, or prefill's of the same sample where decode was late only because that has not answered."""
        if leg.side is Side.DECODE and leg.failure is not None and leg.failure.kind is FailureKind.TIMEOUT:
            prefill = self.prefills[self.decodes.index(leg)]
            if prefill.open and not leg.first_at:
                self._aborts.send(prefill)
                prefill.close()
                message = f"The prefill engine is late: waited for {prefill.waits_for}."
                prefill.failure = LegError(Side.PREFILL, FailureKind.TIMEOUT, message)
                leg.forgive()
                return prefill
        return leg

    # Breakers: each worker's hears once what this attempt says about it.

    def _settle(self) -> None:
        """The attempt is over, or only its prefill legs are left."""
        lease = self.lease
        if not self._decode_told:
            self._decode_told = True
            _tell(lease.decode.breaker, lease.decode_ticket, self.decodes)
        if not self._prefill_told and not (self._lingering and any(leg.open for leg in self.prefills)):
            self._prefill_told = True
            _tell(lease.prefill.breaker, lease.prefill_ticket, self.prefills)


def _tell(breaker: Breaker, ticket: int, legs: list[Leg]) -> None:
    shown = True
    for leg in legs:
        if leg.failure is not None and leg.failure.to_blame:
            breaker.failed(ticket)
            return
        if not leg.done and not leg.status:
            shown = False
    if shown:
        breaker.succeeded(ticket)
    else:
        # It had no time to show anything.
        breaker.abandoned(ticket)


class Watched(Protocol):
    """Something with deadlines."""

    @property
    def over(self) -> bool:
        """Whether it needs no watching any more."""

    def check(self, now: float) -> None:
        """Do what is due at loop time `now`."""

    def close(self) -> None:
        """End it."""


class Watch:
    """Keeps the deadlines of all requests: one tick for all, instead of timers for each leg and chunk."""

    TICK = 0.1

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._watched: set[Watched] = set()
        self._timer: Deadline | None = None

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, watched: Watched) -> None:
        """Watch it until it is over (or `drop`)."""
        self._watched.add(watched)
        if self._timer is None:
            self._timer = Deadline(self._loop, self.TICK, self._tick)

    def drop(self, watched: Watched) -> None:
        """Watch it no more."""
        self._watched.discard(watched)

    def close(self) -> None:
        """End what is still watched."""
        for watched in list(self._watched):
            watched.close()
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now = self._loop.time()
        self._timer = None
        for watched in list(self._watched):
            try:
                watched.check(now)
            except Exception:  # one broken request must not end the deadlines of all others
                log.exception("a deadline could not be kept")
            if watched.over:
                self._watched.discard(watched)
        if self._watched:
            self._timer = Deadline(self._loop, self.TICK, self._tick)
