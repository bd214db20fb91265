"""The kinds that are followed: an informer for each that the cluster serves, in each namespace."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from plait_operator.apply.kinds import CHILDREN, POD, Kind
from plait_operator.apply.meters import Meters
from plait_operator.controller import apis
from plait_operator.controller.informer import Informer
from plait_operator.controller.liveness import SILENT_S
from plait_operator.controller.store import Key, Store
from plait_operator.controller.watching import Watcher

log = logging.getLogger("plait.operator")


class Following:
    """Of one operator; its loop's alone, but for `is_known` and `waiting`, which any thread may ask.

    `namespaces`: those it looks after; none: all. `changed`: told every deployment that a kind touches,
    `hurried`: those that pods touch.
    """

    def __init__(
        self,
        namespaces: Sequence[str],
        *,
        store: Store,
        meters: Meters,
        changed: Callable[[Key], None],
        hurried: Callable[[Key], None],
    ) -> None:
        self.served: frozenset[str] = frozenset()
        """Optional kinds that are there."""
        self._everywhere = not namespaces
        self._namespaces = tuple(namespaces) or ("",)
        self._store = store
        self._meters = meters
        self._changed, self._hurried = changed, hurried
        self._informers: dict[tuple[Kind, str], Informer] = {}
        self._tasks: dict[tuple[Kind, str], asyncio.Task[None]] = {}
        self._known: set[str] = set()

    @property
    def begun(self) -> bool:
        """Whether anything is followed yet."""
        return bool(self._informers)

    async def look(self, watcher: Watcher) -> None:
        """Follow the kinds that are there, and stop following those that are not any more. ApplyError."""
        there = await apis.optional(watcher)
        kinds = [POD, *(k for k in CHILDREN if not k.optional or k in there)]
        for kind in kinds:
            for namespace in self._namespaces:
                at = (kind, namespace)
                if at not in self._informers:
                    informer = self._informers[at] = Informer(
                        kind,
                        namespace,
                        watcher=watcher,
                        store=self._store,
                        changed=self._hurried if kind is POD else self._changed,
                        meters=self._meters,
                    )
                    self._tasks[at] = asyncio.create_task(informer.run(), name=f"watch {kind.plural}")
        for at in [at for at in self._informers if at[0] not in kinds]:
            log.info("%s is not served any more", at[0].kind)
            self._tasks.pop(at).cancel()
            self._informers.pop(at).forget()
        self.served = frozenset(k.kind for k in there)

    async def stop(self) -> None:
        """Follow nothing any more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_known(self, namespace: str) -> bool:
        """Whether its first lists have come; once they have, it stays so."""
        watched = "" if self._everywhere else namespace
        if watched not in self._known and not self._unknown(watched):
            self._known.add(watched)
        return watched in self._known

    def waiting(self) -> list[Informer]:
        """Those whose first list must come before any work.

        A namespace that may not be looked at keeps nobody from the others: it may be gone, with the rights in
        it. Its deployments, should it have any, wait until it is known.
        """
        return [
            informer
            for namespace in self._namespaces
            if not (namespace and any(i.barred for i in self._unknown(namespace)))
            for informer in self._unknown(namespace)
        ]

    def silent(self) -> str:
        """Which of them the API server has not been heard of for too long; '' for none."""
        now = time.monotonic()
        found = [
            f"{i.kind.plural} for {now - i.sign_at:.0f} s"
            for i in list(self._informers.values())
            if now - i.sign_at > SILENT_S
        ]
        return f"nothing was heard of {', '.join(found)}" if found else ""

    def _unknown(self, namespace: str) -> list[Informer]:
        """Those that have not seen yet what there is in a namespace."""
        told = list(self._informers.values())
        return [i for i in told if i.namespace in ("", namespace) and not i.synced.is_set()]
