"""Deployments are counted now and then: kopf tells nothing of those that went while its watch was down."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Final

from plait_operator.apply.errors import ApplyError
from plait_operator.apply.kinds import DEPLOYMENT
from plait_operator.apply.meters import Meters
from plait_operator.controller.store import Key, Store
from plait_operator.controller.watching import Watcher

log = logging.getLogger("plait.operator")

_EVERY_S: Final = 300.0


async def census(
    watcher: Watcher,
    namespaces: Sequence[str],
    *,
    store: Store,
    changed: Callable[[Key], None],
    meters: Meters,
) -> None:
    """Until cancelled. `namespaces`: none: all. `changed` is told every deployment that was held wrongly."""
    while True:
        await asyncio.sleep(_EVERY_S * random.uniform(0.8, 1.2))
        for namespace in namespaces or ("",):
            try:
                await count(watcher, namespace, store=store, changed=changed, meters=meters)
            except ApplyError as error:
                log.info("census: %s", error)


async def count(
    watcher: Watcher, namespace: str, *, store: Store, changed: Callable[[Key], None], meters: Meters
) -> None:
    """Compare what a list shows with what is held, so that a lost change is found as well. ApplyError."""
    before = [k for k in store.deployments() if namespace in ("", k.namespace)]
    seen: set[Key] = set()
    async for page in watcher.pages(DEPLOYMENT.path(namespace)):
        for item in page.items:
            key = Key(item["metadata"]["namespace"], item["metadata"]["name"])
            seen.add(key)
            if not store.knows(item) and store.put_deployment(item) is not None:
                changed(key)
    for key in before:
        if key not in seen:
            meters.lost_deletes.labels(DEPLOYMENT.kind).inc()
            store.drop_deployment(key)
            changed(key)
