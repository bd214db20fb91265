"""One engine behind the router: its last status, whether it is in rotation, and what runs on it."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable

from plait.contract.status import STATUS_VERSION, EngineStatus
from plait.router.breaker import Breaker, BreakerRules
from plait.router.discovery.target import Target
from plait.router.pairing import Candidate, Side
from plait.router.placement.views import View
from plait.router.upstream.pool import Pool

log = logging.getLogger("plait.router.workers")

_NOT_ASKED = "its status has not been read yet"
_ids = itertools.count(1)


class Worker(View):
    """One engine, and its part in placement (`View`).

    `trouble` says why it is out of rotation (empty: alive, with a status of its own role). `draining`: it
    gets no new requests; those under way go on. All of it belongs to the router's loop.
    """

    def __init__(
        self,
        target: Target,
        pool: Pool,
        *,
        limit: int,
        freed: Callable[[], None],
        changed: Callable[[], None],
        rules: BreakerRules | None = None,
    ) -> None:
        super().__init__(next(_ids), target.url, limit=limit)
        self.target = target
        self.pool = pool
        self.host_line = b"host: %b\r\n" % pool.authority
        self.breaker = Breaker(rules)
        self.status: EngineStatus | None = None
        self.trouble = _NOT_ASKED
        self.reachable = False
        self.withdrawn = False  # by the admin API
        self.misses = 0
        self.read_at = 0.0  # time.monotonic() of `status`
        self.asked_at = float("-inf")  # when the last poll ended, well or not
        self._freed = freed
        self._changed = changed

    @property
    def side(self) -> Side:
        """Whose legs it serves."""
        return self.target.side

    @property
    def url(self) -> str:
        """Where it is."""
        return self.target.url

    @property
    def draining(self) -> bool:
        """Whether it gets no new requests, by its source's word or the admin API's."""
        return self.withdrawn or self.target.draining

    @property
    def age(self) -> float | None:
        """Seconds since `status` was read, None before the first."""
        return None if self.status is None else time.monotonic() - self.read_at

    @property
    def takes(self) -> bool:
        """Whether it may get a request now (its limit aside)."""
        if self.trouble or self.withdrawn or self.target.draining:
            return False
        return self.breaker.closed or self.breaker.allow()

    def candidate(self) -> Candidate:
        """This worker as the explanation of pairing sees it."""
        trouble = self.trouble
        if not trouble and self.draining:
            trouble = self.target.reason or "it is draining: no new requests"
        if not trouble and not self.breaker.allow():
            trouble = "its circuit breaker is open: its last requests failed"
        return Candidate(self.url, self.side, self.wire, trouble)

    def enter(self, legs: int, work: float = 0.0) -> None:
        """Legs of one request begin. `work`: what they add to the load (0: one each)."""
        self.in_flight += legs
        self.load += work or legs

    def leave(self, legs: int, work: float = 0.0) -> None:
        """They have ended."""
        self.in_flight -= legs
        # Sums of fractions drift: an idle worker has no load.
        self.load = self.load - (work or legs) if self.in_flight else 0.0
        self._freed()

    def out(self, trouble: str) -> None:
        """Take the worker out of rotation until its next good poll."""
        if trouble != self.trouble:
            log.warning("%s %s leaves rotation: %s", self.side, self.url, trouble)
        self.trouble = trouble

    def late(self, *, misses: int, trouble: str) -> None:
        """A poll was not answered in time: suspect at once, out of rotation after `misses` in a row."""
        self.reachable = False
        self.misses += 1
        if self.misses >= misses or self.status is None:
            self.out(trouble)
        elif not self.suspect:
            log.warning("%s %s is suspect: %s", self.side, self.url, trouble)
        self.suspect = True

    def take(self, status: EngineStatus) -> bool:
        """A poll was answered: keep the figures, and judge whether the engine can serve its side.

        Returns whether another process than before answered: what the old one had cached is gone.
        """
        before = self.status
        restarted = before is not None and _process(before) != _process(status)
        self.status, self.read_at, self.reachable = status, time.monotonic(), True
        self.misses, self.suspect = 0, False
        if restarted:
            log.warning("%s %s was restarted", self.side, self.url)
            self.id = next(_ids)
            self.breaker.reset()
            self.pool.drop_idle()
        trouble = _judge(status, self.side)
        wire = status.wire_hash
        if trouble:
            self.out(trouble)
        elif self.trouble or wire != self.wire:
            log.info("%s %s is alive, contract %s", self.side, self.url, wire[:12])
            self.trouble, self.wire = "", wire
            self._changed()
        return restarted


def _process(status: EngineStatus) -> tuple[float, tuple[int, ...]]:
    return status.started_at, tuple(rank.pid for rank in status.ranks)


def _judge(status: EngineStatus, side: Side) -> str:
    """Why an engine with this status cannot serve `side`, empty when it can."""
    if status.version != STATUS_VERSION:
        return f"its status has version {status.version}, this router reads {STATUS_VERSION}: use one Plait"
    if status.role != side:
        return f"it is a {status.role} engine, listed as {side}"
    if len(status.ranks) < status.cp:
        return f"{len(status.ranks)} of its {status.cp} ranks have reported"
    return ""
