"""Asks the routers which engines they have taken in: often while a gate waits for it, else now and then."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import orjson

from plait_operator.apply.meters import Meters
from plait_operator.controller.asking import MuteError, TooLongError, ask
from plait_operator.controller.groups import relevant, router_fact
from plait_operator.controller.store import Key, Store
from plait_operator.observed import PodFact, RouterFact

log = logging.getLogger("plait.operator.routers")

ADMIN_PORT: Final = 8001
SOON_S: Final = 2.0
"""Between two rounds of a deployment with a gate that is due."""
CALM_S: Final = 15.0
"""And of one without."""
STEADY_S: Final = 25.0
"""And of one whose routers have said the same `_STEADY` times in a row. With what chance and an answer's
time add it is less than `gates.STALE_S`, or answers would say nothing between two rounds."""
_STEADY: Final = 4
_SILENT_S: Final = 60.0
"""Longest pause of one none of whose routers answers."""
_AT_ONCE: Final = 32
_TIMEOUT_S: Final = 1.0
_LONGEST: Final = 8 << 20
_PATH: Final = "/api/v1/groups"
_ENGINES: Final = ("prefill", "decode")


class _Told(NamedTuple):
    """An answer, by the digest of its bytes: the same ones need not be read again."""

    digest: bytes
    fact: RouterFact


class RouterWatch:
    """Rounds over all deployments. Belongs to one event loop.

    `active`: whether this process leads; a standby asks nobody. `changed` is told a deployment when its
    routers say something that decides anything.
    """

    def __init__(
        self,
        *,
        store: Store,
        changed: Callable[[Key], None],
        active: Callable[[], bool],
        meters: Meters,
        port: int = ADMIN_PORT,
    ) -> None:
        self._store = store
        self._changed = changed
        self._active = active
        self._meters = meters
        self._port = port
        self._next: dict[Key, float] = {}
        self._running: set[Key] = set()
        self._silent: dict[Key, int] = {}
        self._steady: dict[Key, int] = {}
        self._told: dict[Key, dict[str, _Told]] = {}
        self._hurry: set[Key] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def hurry(self, key: Key) -> None:
        """Something about this deployment's pods has changed: do not wait for a calm round to end."""
        self._hurry.add(key)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self._active():
                self._begin_rounds()
            await asyncio.sleep(0.25)

    def _begin_rounds(self) -> None:
        now = time.monotonic()
        hurried, self._hurry = self._hurry, set()
        for key in hurried:
            if waits(self._store.pods(key), self._store.routers(key)):
                # Silent routers may be new ones by now; events of their pods must not make a storm.
                soon = now + SOON_S if self._silent.get(key) else now
                self._next[key] = min(self._next.get(key, soon), soon)
        there = self._store.deployments()
        times = ((self._next.get(k, now), k) for k in there if k not in self._running)
        due = sorted(one for one in times if one[0] <= now)
        for _, key in due[: _AT_ONCE - len(self._running)]:
            self._running.add(key)
            task = asyncio.create_task(self._round(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for key in self._next.keys() - set(there):
            self._next.pop(key)
            for known in (self._silent, self._steady, self._told):
                known.pop(key, None)

    async def _round(self, key: Key) -> None:
        """Ask all routers of a deployment."""
        pods = self._store.pods(key)
        pause = CALM_S
        try:
            routers = [p for p in pods if p.role == "router" and p.ip and not p.deleting]
            before = relevant(self._store.routers(key))
            facts: tuple[RouterFact, ...] = ()
            if routers and any(p.role in _ENGINES for p in pods):
                facts = await self._ask_all(key, [p for p in routers if p.ready])
            # Not an answer, but known to be there: a quorum is counted among those that are ready.
            facts += tuple(RouterFact(p.name, False, 0.0, error="not ready") for p in routers if not p.ready)
            self._store.put_routers(key, facts)
            if relevant(facts) != before:
                self._steady.pop(key, None)
                self._changed(key)
            pause = self._pause(key, pods, facts)
        except Exception:
            log.exception("routers of %s/%s: this is a fault of the operator", *key)
        finally:
            self._running.discard(key)
            self._next[key] = time.monotonic() + pause * random.uniform(0.9, 1.1)

    def _pause(self, key: Key, pods: tuple[PodFact, ...], facts: tuple[RouterFact, ...]) -> float:
        asked = [f for f in facts if f.ready]
        if asked and all(f.error for f in asked):
            failures = self._silent[key] = min(self._silent.get(key, 0) + 1, 8)
            return float(min(_SILENT_S, SOON_S * 2.0 ** (failures - 1)))
        self._silent.pop(key, None)
        if waits(pods, facts):
            self._steady.pop(key, None)
            return SOON_S
        if any(f.error for f in asked):
            return CALM_S
        calm = self._steady[key] = min(self._steady.get(key, 0) + 1, _STEADY)
        return STEADY_S if calm == _STEADY else CALM_S

    async def _ask_all(self, key: Key, routers: list[PodFact]) -> tuple[RouterFact, ...]:
        before = self._told.get(key, {})
        answers = await asyncio.gather(*(self._ask(pod, before.get(pod.uid)) for pod in routers))
        # Only what was told just now is kept: routers come and go.
        self._told[key] = {pod.uid: told for pod, told in zip(routers, answers, strict=True) if told.digest}
        return tuple(told.fact for told in answers)

    async def _ask(self, pod: PodFact, before: _Told | None) -> _Told:
        """`before`: what it said the last time. An answer without a digest is none to be kept."""
        try:
            async with self._slots:
                answer = await ask(pod.ip, self._port, _PATH, timeout_s=_TIMEOUT_S, longest=_LONGEST)
        except MuteError as error:
            return self._mute(pod, "unreachable", f"no answer ({error})")
        except TooLongError:
            return self._mute(pod, "unreadable", f"an answer of over {_LONGEST} bytes")
        if answer.status != 200:
            return self._mute(pod, "refused", f"it answers {answer.status}")
        digest = hashlib.blake2b(answer.body, digest_size=16).digest()
        if before is not None and before.digest == digest:
            self._meters.router_polls.labels("answered").inc()
            return before
        try:
            told = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            return self._mute(pod, "unreadable", "its answer is no JSON")
        fact = router_fact(pod.name, ready=True, told=told)
        if fact.error:
            return self._mute(pod, "unreadable", fact.error)
        self._meters.router_polls.labels("answered").inc()
        return _Told(digest, fact)

    def _mute(self, pod: PodFact, result: str, error: str) -> _Told:
        self._meters.router_polls.labels(result).inc()
        return _Told(b"", RouterFact(pod.name, True, 0.0, error=error))


def waits(pods: tuple[PodFact, ...], facts: tuple[RouterFact, ...]) -> bool:
    """Whether routers must be asked soon: some pod runs and they have not let it in yet, or it is to go.

    `facts`: their last answers. Once all that answer have a pod, asking again opens its gate no sooner: in a
    burst of a thousand deployments, whose writes take minutes, that would be most of what there is to do.
    """
    answers = [fact for fact in facts if fact.ready and not fact.error]
    return any(
        (pod.deleting and pod.admitted)
        or (pod.containers_ready and not pod.admitted and not (answers and _in_all(pod, answers)))
        for pod in pods
        # A group's pods beside its leader have no gate.
        if pod.role in _ENGINES and not pod.worker
    )


def _in_all(pod: PodFact, answers: list[RouterFact]) -> bool:
    mine = f"{pod.uid}/"
    return all(
        any(engine.taken_in and engine.identity.startswith(mine) for engine in fact.engines)
        for fact in answers
    )
