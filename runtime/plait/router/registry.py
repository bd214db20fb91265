"""All engines behind the router: which there are, which are paired, and who gets the next request."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from plait.router.breaker import BreakerRules
from plait.router.config import RouterConfig
from plait.router.discovery.target import Target, Targets
from plait.router.engine_tls import EngineTrust
from plait.router.errors import RouterError
from plait.router.health import Health
from plait.router.pairing import Side, pairs, reasons
from plait.router.placement.hashing import PrefixKeys
from plait.router.placement.memory import PrefixMemory
from plait.router.placement.policy import Policy, Why, choose_pair
from plait.router.queue import Line
from plait.router.upstream.pool import Pool
from plait.router.workers import Worker

log = logging.getLogger("plait.router.registry")


class ReadyPair(NamedTuple):
    """Two workers that serve requests together."""

    prefill: Worker
    decode: Worker


class Lease(NamedTuple):
    """Two workers given to one request, with the tickets of their breakers.

    `matched` of the prompt's `pages` were in requests that this process sent to `prefill` before.
    """

    prefill: Worker
    decode: Worker
    prefill_ticket: int
    decode_ticket: int
    why: Why
    matched: int
    pages: int
    legs: int
    work: float

    def give_back(self) -> None:
        """Nothing was sent: free the places, and the breakers' probes."""
        self.prefill.breaker.abandoned(self.prefill_ticket)
        self.decode.breaker.abandoned(self.decode_ticket)
        self.prefill.leave(self.legs, self.work * self.legs)
        self.decode.leave(self.legs)


class Registry:
    """All workers of a router; polls them for as long as it is open (`async with`)."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        connected: Callable[[Side, float], None] = lambda side, seconds: None,
        trust: EngineTrust | None = None,
    ) -> None:
        self._config = config
        self._connected = connected
        self._trust = trust
        self._rules = BreakerRules(failures=config.breaker_failures, wait=config.breaker_wait)
        self._policy = Policy(config.policy)
        self._decode_policy = Policy(config.decode_policy)
        self._picks = 0
        self._workers: dict[str, Worker] = {}
        self._leaving: set[Worker] = set()
        self._prefills: list[Worker] = []
        self._decodes: list[Worker] = []
        self._withdrawn: frozenset[str] = frozenset()
        self.memory = PrefixMemory()
        self.line: Line[Lease] = Line(max_waiting=config.queue_limit)
        self.health = Health(config, restarted=self._restarted)

    async def __aenter__(self) -> Registry:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.health.close()
        await asyncio.gather(*(w.pool.close() for w in (*self._workers.values(), *self._leaving)))

    @property
    def workers(self) -> Sequence[Worker]:
        """All that are listed now."""
        return list(self._workers.values())

    @property
    def leaving(self) -> Sequence[Worker]:
        """Listed no more, but with legs under way."""
        return list(self._leaving)

    def worker(self, url: str) -> Worker | None:
        """The worker at `url`."""
        return self._workers.get(url)

    # Who there is.

    def set_targets(self, targets: Targets) -> None:
        """These are the workers now. New ones are polled at once; those left out finish what they have.

        An address with another identity, side or bootstrap port is another worker.
        """
        wanted = {target.url: target for target in targets}
        for url, worker in list(self._workers.items()):
            target = wanted.get(url)
            if target is None or target.key != worker.target.key:
                self._remove(worker)
            elif target != worker.target:
                log.info("%s %s: %s", worker.side, url, target.reason or "serves again")
                worker.target = target
        for url, target in wanted.items():
            if url not in self._workers:
                self._add(target)
        self._prefills = [w for w in self._workers.values() if w.side is Side.PREFILL]
        self._decodes = [w for w in self._workers.values() if w.side is Side.DECODE]
        self.line.kick()

    def withdraw(self, urls: Collection[str]) -> None:
        """Exactly these addresses get no new requests, by the admin API's word."""
        self._withdrawn = frozenset(urls)
        for worker in self._workers.values():
            if worker.withdrawn is not (worker.url in self._withdrawn):
                worker.withdrawn = not worker.withdrawn
                log.info(
                    "%s %s %s", worker.side, worker.url, "drains" if worker.withdrawn else "serves again"
                )
        self.line.kick()

    def _add(self, target: Target) -> None:
        if target.url.startswith("https:") and self._trust is None:
            self._trust = EngineTrust()
        pool = Pool(
            target.url,
            connect_seconds=self._config.deadlines.connect,
            connected=functools.partial(self._connected, target.side),
            trust=self._trust,
        )
        worker = Worker(
            target,
            pool,
            limit=self._config.worker_limit,
            freed=self._freed,
            changed=self.line.kick,
            rules=self._rules,
        )
        worker.withdrawn = target.url in self._withdrawn
        self._workers[target.url] = worker
        log.info("%s %s is listed", target.side, target.url)
        self.health.watch(worker)

    def _remove(self, worker: Worker) -> None:
        del self._workers[worker.url]
        log.info("%s %s is listed no more, %d legs under way", worker.side, worker.url, worker.in_flight)
        self.health.forget(worker)
        self.memory.forget(worker.id)
        worker.withdrawn = True
        if worker.in_flight:
            self._leaving.add(worker)
        else:
            self._close(worker)

    def _close(self, worker: Worker) -> None:
        self._leaving.discard(worker)
        worker.pool.retire()

    def _restarted(self, worker: Worker, old_id: int) -> None:
        self.memory.forget(old_id)

    # Who serves next.

    def pick(
        self,
        keys: PrefixKeys | None,
        *,
        legs: int = 1,
        sticky: str | None = None,
        exclude: Collection[int] = (),
    ) -> Lease | None:
        """The pair for a request, None when none can take it now.

        Both workers count `legs` (for each side) from now on: each ends with its leg (`Worker.leave`), or all
        with `Lease.give_back`. `exclude`: ids tried before, which it does not get.
        """
        chosen = choose_pair(
            self._policy,
            [w for w in self._prefills if w.takes and w.id not in exclude],
            [w for w in self._decodes if w.takes and w.id not in exclude],
            keys,
            self.memory,
            decode_policy=self._decode_policy,
            sticky=sticky,
            bound=self._config.bound,
        )
        if chosen is None:
            return None
        prefill, decode, work = chosen.prefill, chosen.decode, chosen.work
        if keys is not None:
            self.memory.note(keys, prefill.id, computed=chosen.computed)
        self._picks += 1
        prefill.last_picked = decode.last_picked = self._picks
        prefill.enter(legs, work * legs)
        decode.enter(legs)
        return Lease(
            prefill,
            decode,
            prefill.breaker.take(),
            decode.breaker.take(),
            chosen.why,
            chosen.matched,
            chosen.pages,
            legs,
            work,
        )

    def must_have_pair(self) -> None:
        """Raises RouterError (503) where no pair is alive, busy or not."""
        wires = {w.wire for w in self._decodes if w.takes}
        if any(p.wire in wires for p in self._prefills if p.takes and p.wire):
            return
        waits = [
            w.breaker.retry_in
            for w in (*self._prefills, *self._decodes)
            if not w.breaker.closed and not w.trouble and not w.draining
        ]
        if waits:
            raise RouterError(
                503,
                "The engines that are alive failed their last requests, and get none for a while (circuit "
                "breaker); GET /ready says which.",
                code="no_pair",
                retry_after=max(min(waits), 1.0),
            )
        raise RouterError(
            503,
            "No prefill and decode engines with equal contracts are ready; GET /ready says why.",
            code="no_pair",
        )

    def pair_without(self, exclude: Collection[int]) -> bool:
        """Whether a pair of other workers than these is alive, busy or not."""
        wires = {w.wire for w in self._decodes if w.takes and w.id not in exclude}
        return any(p.wire in wires for p in self._prefills if p.takes and p.wire and p.id not in exclude)

    def reasons(self) -> Mapping[str, str]:
        """By worker address: why it serves nothing, empty when it is part of a pair."""
        return reasons([w.candidate() for w in self._workers.values()])

    def pairs(self) -> list[ReadyPair]:
        """All pairs that can serve now."""
        found = pairs([w.candidate() for w in self._workers.values()])
        return [ReadyPair(self._workers[p.prefill], self._workers[p.decode]) for p in found]

    async def refresh(self) -> None:
        """Ask each worker again whose answer is older than `status_cache`; ends in `deadlines.status`."""
        await self.health.refresh(self.workers)

    def _freed(self) -> None:
        if self.line.waiting:
            self.line.kick()
        if self._leaving:
            for worker in [w for w in self._leaving if not w.in_flight]:
                self._close(worker)
