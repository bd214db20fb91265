"""Asks the routers which engines they have taken in: often while a gate waits for it, else now and then."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final

import aiohttp
import orjson

from plait_operator.apply.meters import Meters
from plait_operator.controller.groups import relevant, router_fact
from plait_operator.controller.store import Key, Store
from plait_operator.observed import PodFact, RouterFact

log = logging.getLogger("plait.operator.routers")

ADMIN_PORT: Final = 8001
SOON_S: Final = 2.0
"""Between two rounds of a deployment with a gate that is due."""
CALM_S: Final = 15.0
"""And of one without."""
_SILENT_S: Final = 60.0
"""Longest pause of one none of whose routers answers."""
_AT_ONCE: Final = 32
_TIMEOUT_S: Final = 1.0
_KEPT_S: Final = SOON_S * 1.5
"""How long a connection is kept: for rounds that follow soon. Those of calm ones would be thousands."""
_LONGEST: Final = 8 << 20
_ENGINES: Final = ("prefill", "decode")


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
        self._hurry: set[Key] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def hurry(self, key: Key) -> None:
        """Something about this deployment's pods has changed: do not wait for a calm round to end."""
        self._hurry.add(key)

    async def run(self) -> None:
        """Until cancelled."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=_AT_ONCE, keepalive_timeout=_KEPT_S)
        ) as session:
            self._session = session
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
        due = sorted((self._next.get(k, now), k) for k in there if k not in self._running)
        for at, key in due[: _AT_ONCE - len(self._running)]:
            if at > now:
                break
            self._running.add(key)
            task = asyncio.create_task(self._round(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for key in self._next.keys() - set(there):
            self._next.pop(key)
            self._silent.pop(key, None)

    async def _round(self, key: Key) -> None:
        """Ask all routers of a deployment."""
        pods = self._store.pods(key)
        pause = CALM_S
        try:
            routers = [p for p in pods if p.role == "router" and p.ip and not p.deleting]
            before = relevant(self._store.routers(key))
            facts: tuple[RouterFact, ...] = ()
            if routers and any(p.role in _ENGINES for p in pods):
                facts = tuple(await asyncio.gather(*(self._ask(p) for p in routers if p.ready)))
            # Not an answer, but known to be there: a quorum is counted among those that are ready.
            facts += tuple(RouterFact(p.name, False, 0.0, error="not ready") for p in routers if not p.ready)
            self._store.put_routers(key, facts)
            if relevant(facts) != before:
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
        return SOON_S if waits(pods, facts) else CALM_S

    async def _ask(self, pod: PodFact) -> RouterFact:
        assert self._session is not None
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        try:
            async with (
                self._slots,
                self._session.get(
                    f"http://{host}:{self._port}/api/v1/groups", allow_redirects=False
                ) as answer,
            ):
                if answer.status != 200:
                    self._meters.router_polls.labels("refused").inc()
                    return RouterFact(pod.name, True, 0.0, error=f"it answers {answer.status}")
                body = await answer.content.read(_LONGEST)
                while more := await answer.content.read(_LONGEST - len(body) + 1):
                    body += more
                    if len(body) > _LONGEST:
                        return RouterFact(pod.name, True, 0.0, error=f"an answer of over {_LONGEST} bytes")
                told = orjson.loads(body)
        except orjson.JSONDecodeError:
            self._meters.router_polls.labels("unreadable").inc()
            return RouterFact(pod.name, True, 0.0, error="its answer is no JSON")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._meters.router_polls.labels("unreachable").inc()
            # The kind of the trouble and no more: its text holds what differs from time to time.
            return RouterFact(pod.name, True, 0.0, error=f"no answer ({type(error).__name__})")
        fact = router_fact(pod.name, ready=True, told=told)
        self._meters.router_polls.labels("unreadable" if fact.error else "answered").inc()
        return fact


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
