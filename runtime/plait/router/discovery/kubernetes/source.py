"""Workers from the pods of a namespace: a list, a watch from there on, and a new list whenever in doubt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Mapping

from plait.router.discovery.base import BaseSource
from plait.router.discovery.kubernetes.access import Access
from plait.router.discovery.kubernetes.api import PodsApi
from plait.router.discovery.kubernetes.backoff import Backoff
from plait.router.discovery.kubernetes.cache import Cache, entry
from plait.router.discovery.kubernetes.errors import ApiError, CutError, GoneError, UnreachableError
from plait.router.discovery.kubernetes.rules import Skipped
from plait.router.discovery.kubernetes.settings import KubernetesSettings
from plait.router.discovery.source import Take

log = logging.getLogger("plait.router.discovery")

# A watch that lives so long, or that tells anything, is a sound one: the failures before it are forgotten.
_SOUND_AFTER = 1.0
# A cut watch happens in good health; so many in a row do not.
_TOLERATED = 2
_LONGEST_PAUSE = 10.0
# A list that failed while the watch can go on is tried again after this: the watch must not wait for it.
_NEXT_LIST = 15.0


class KubernetesSource(BaseSource):
    """Follows the pods that `settings` select, with the rights of `access`. One connection at a time."""

    def __init__(self, settings: KubernetesSettings, access: Access) -> None:
        super().__init__(kind="kubernetes", name=f"pods of namespace {access.namespace}")
        self._settings = settings
        self._rules = settings.rules()
        self._cache = Cache(self._rules)
        self._api = PodsApi(access, selector=settings.label_selector(), timeout=settings.timeout)
        self._backoff = Backoff(most=_LONGEST_PAUSE)
        self._resync_at = 0.0
        self._list_is_fresh = False
        self._faults: dict[str, Skipped] = {}

    @property
    def skipped(self) -> Mapping[str, str]:
        """Pods that are selected but are no targets, by name, and why not."""
        return {name: skipped.reason for name, skipped in self._cache.skipped().items()}

    async def watch(self, take: Take) -> None:
        """Follow the pods until cancelled."""
        try:
            while True:
                pause = await self._attempt(take)
                if pause:
                    # Whatever it was, no connection and no certificate from before is trusted again.
                    await self._api.reset()
                    await asyncio.sleep(pause)
        finally:
            await self._api.reset()

    async def _attempt(self, take: Take) -> float:
        """A list where one is due, and one watch. Returns the seconds to wait before the next attempt."""
        self._list_is_fresh = False
        try:
            if not self._cache.version or time.monotonic() >= self._resync_at:
                await self._list(take)
            await self._follow(take)
        except ApiError as error:
            return self._trouble(error)
        except Exception:
            # A fault of our own must not end discovery for good, and must not be overlooked either.
            log.exception("%s: this is a fault of the router", self.name)
            return self._trouble(ApiError("a fault of the router itself: see the log"))
        return 0.0

    async def _list(self, take: Take) -> None:
        found = await self._api.list_pods(lambda pod: entry(pod, self._rules))
        followed = bool(self._cache.version)
        lost = self._cache.replace(found.entries, found.version)
        self._list_is_fresh = True
        self.counts["lists"] += 1
        if lost and followed:
            # Or they went in the moment between watch and list: not worth a warning.
            self.counts["lost_deletes"] += lost
            log.info("%s: %d pods were gone that the watch had not told of", self.name, lost)
        self._resync_at = time.monotonic() + self._settings.resync
        self._publish(take)

    async def _follow(self, take: Take) -> None:
        """One watch, until the server ends it in time or a list is due. Raises ApiError."""
        loop, settings = asyncio.get_running_loop(), self._settings
        # Spread, so that the watches of many routers do not end together.
        seconds = max(1, math.ceil(settings.watch * random.uniform(0.75, 1.25)))
        longest = seconds + settings.margin
        due = self._resync_at - time.monotonic()
        sound: asyncio.TimerHandle | None = None
        began = loop.time()

        def agreed() -> None:
            nonlocal sound
            sound = loop.call_later(_SOUND_AFTER, self._sound)

        self.counts["watches"] += 1
        limit = asyncio.timeout(min(longest, max(0.0, due)))
        try:
            async with limit:
                batches = self._api.watch_pods(self._cache.version, seconds=seconds, began=agreed)
                async with contextlib.aclosing(batches):
                    async for batch in batches:
                        for event in batch:
                            self._cache.apply(event)
                        self.counts["events"] += len(batch)
                        self._sound()
                        self._publish(take)
        except TimeoutError:
            if not limit.expired():
                raise
            if longest >= due:
                return  # a list is due
            self.counts["silent_watches"] += 1
            raise CutError(f"the watch did not end after its {seconds} s: a dead connection") from None
        finally:
            if sound is not None:
                sound.cancel()
        if loop.time() - began < _SOUND_AFTER:
            raise CutError("the API server ends each watch at once")
        self._heard()

    def _publish(self, take: Take) -> None:
        self._hand_over(take, self._cache.targets())
        self._heard()
        faults = {name: skipped for name, skipped in self._cache.skipped().items() if skipped.fault}
        for name, fault in faults.items():
            if self._faults.get(name) != fault:
                log.warning("%s: pod %s is no worker: %s", self.name, name, fault.reason)
        self._faults = faults

    def _sound(self) -> None:
        self._backoff.reset()
        self._well()
        self._heard()

    def _trouble(self, error: ApiError) -> float:
        """Note a failed attempt; seconds to wait before the next."""
        self.counts["gone" if isinstance(error, GoneError) else "errors"] += 1
        if isinstance(error, GoneError) and not self._list_is_fresh:
            # A watch that slept too long, in good health: the list that it needs is not to wait.
            self._cache.version = ""
            log.info("%s: %s", self.name, error)
            return 0.0
        pause = max(self._backoff.next(), min(error.retry_after, _LONGEST_PAUSE))
        if isinstance(error, UnreachableError):
            later = time.monotonic() + pause + min(_NEXT_LIST, self._settings.resync)
            self._resync_at = max(self._resync_at, later)
        else:
            # Where the watch was is in doubt: begin anew.
            self._cache.version = ""
        if isinstance(error, CutError) and self._backoff.failures <= _TOLERATED:
            log.info("%s: %s", self.name, error)
        else:
            self._failed(str(error))
        return pause
