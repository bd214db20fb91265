"""Keeps the store true for one kind: a list, a watch from there on, and a new list whenever in doubt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Final

from plait_operator.apply.errors import ApiError, ApplyError, UnreachableError
from plait_operator.apply.kinds import Kind
from plait_operator.apply.meters import Meters
from plait_operator.controller.backoff import Backoff
from plait_operator.controller.store import Key, Store, owner_key
from plait_operator.controller.watching import GoneError, Watcher, whole
from plait_operator.names import MANAGED_BY, MANAGER

log = logging.getLogger("plait.operator.watch")

SELECTOR: Final = f"{MANAGED_BY}={MANAGER}"
"""Label selector of everything that is watched, children and pods alike."""

_WATCH_S: Final = 300
_SOUND_AFTER_S: Final = 1.0


class Informer:
    """One kind, in one namespace or (empty) in all. `changed` is told every deployment that it touches.

    kopf's own watching is not used for children: it tells nothing of objects that went while a watch was
    down. Here the list after such a gap is compared with what is held, and what is missing is dropped.

    `resync_s`: a new list at least so often, in case the server or this code has lost something.
    """

    def __init__(
        self,
        kind: Kind,
        namespace: str,
        *,
        watcher: Watcher,
        store: Store,
        changed: Callable[[Key], None],
        meters: Meters,
        resync_s: float = 1800.0,
    ) -> None:
        self.kind = kind
        self.namespace = namespace
        self.synced = asyncio.Event()
        self.sign_at = time.monotonic()
        """When the server, or a failed attempt at it, was last heard of: what liveness looks at."""
        self.barred = False
        """The last attempt was refused: no right to look, which a namespace that is gone takes along."""
        self._watcher = watcher
        self._store = store
        self._changed = changed
        self._meters = meters
        self._resync_s = resync_s
        self._backoff = Backoff()
        self._version = 0
        self._why = "start"
        self._resync_at = 0.0
        self._path = kind.path(namespace)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            pause = await self._attempt()
            self.sign_at = time.monotonic()
            if pause:
                await asyncio.sleep(pause)

    def forget(self) -> None:
        """The cluster has no such kind any more: neither has the store."""
        found = self._store.retain(self.kind, self.namespace, frozenset(), version=1 << 63)
        for key in found.keys:
            self._changed(key)

    async def _attempt(self) -> float:
        """A list where one is due, and one watch. Seconds to wait before the next attempt."""
        began = time.monotonic()
        try:
            if not self._version or began >= self._resync_at:
                if self._version:
                    self._why = "resync"
                await self._list()
                began = time.monotonic()
            await self._follow()
        except GoneError as error:
            log.info("%s", error)
            return self._trouble("gone", anew=True, pause=self._backoff.failures > 0)
        except UnreachableError as error:
            # Where the watch was is still known: go on from there.
            log.info("%s", error)
            return self._trouble("trouble", anew=False)
        except ApplyError as error:
            told, self.barred = self.barred, isinstance(error, ApiError) and error.status == 403
            # Refused once, refused every quarter of a minute.
            log.log(logging.INFO if told and self.barred else logging.WARNING, "%s: %s", self._path, error)
            return max(
                self._trouble("trouble", anew=True),
                min(error.retry_after, 15.0) if isinstance(error, ApiError) else 0.0,
            )
        except Exception:
            # A fault of our own must not end the watching for good, and must not be overlooked either.
            log.exception("watch of %s: this is a fault of the operator", self._path)
            return self._trouble("trouble", anew=True)
        if time.monotonic() - began < _SOUND_AFTER_S:
            return self._backoff.next()  # a server that ends each watch at once
        self._backoff.reset()
        return 0.0

    def _trouble(self, why: str, *, anew: bool, pause: bool = True) -> float:
        if anew:
            self._version, self._why = 0, why
        wait = self._backoff.next()
        return wait if pause else 0.0

    async def _list(self) -> None:
        version = 0
        changed: set[Key] = set()
        seen: set[tuple[Key, str]] = set()
        async with contextlib.aclosing(self._watcher.pages(self._path, selector=SELECTOR)) as pages:
            async for page in pages:
                version = page.version
                self.sign_at = time.monotonic()
                for item in page.items:
                    # Put away page by page: a thousand whole objects are many megabytes.
                    thing = whole(self.kind, item)
                    key = owner_key(thing)
                    if key is not None:
                        seen.add((key, thing["metadata"]["name"]))
                        if self._store.put(thing) is not None:
                            changed.add(key)
        found = self._store.retain(self.kind, self.namespace, seen, version=version)
        if found.lost:
            self._meters.lost_deletes.labels(self.kind.kind).inc(found.lost)
            log.info("%s: %d objects were gone that no watch had told of", self._path, found.lost)
        self._meters.lists.labels(self.kind.kind, self._why).inc()
        self._store.reached(self.kind, self.namespace, version)
        self._version = version
        self.barred = False
        # Spread, so that the lists of all kinds do not come together.
        self._resync_at = time.monotonic() + self._resync_s * random.uniform(0.8, 1.2)
        self.synced.set()
        for key in changed | found.keys:
            self._changed(key)

    async def _follow(self) -> None:
        """One watch, until the server ends it in time."""
        seconds = int(_WATCH_S * random.uniform(0.75, 1.25))
        counter = self._meters.watch_events.labels(self.kind.kind)
        events = self._watcher.events(self._path, selector=SELECTOR, version=self._version, seconds=seconds)
        async with contextlib.aclosing(events):
            async for event in events:
                self.sign_at = time.monotonic()
                self._backoff.reset()
                key = None
                if event.type == "DELETED":
                    key = self._store.drop(event.thing)
                elif event.type != "BOOKMARK":
                    key = self._store.put(event.thing)
                # Only after the store has it: an answer to a write is judged by it.
                self._version = event.version
                self._store.reached(self.kind, self.namespace, event.version)
                counter.inc()
                if key is not None:
                    self._changed(key)
