"""kopf as transport, and as nothing else: what it hears of the custom resources becomes keys in the queue.

It keeps no state of its own in the objects (no annotations, finalizers or status), posts no Events, knows no
peering, and handles nothing that could fail or need a retry: those are the queue's. It runs in a thread and
an event loop of its own, for at its end it cancels every task of its loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import kopf

from plait_operator.api.base import GROUP, VERSION
from plait_operator.apply.connection import Connection
from plait_operator.apply.kinds import DEPLOYMENT, ROLE
from plait_operator.apply.meters import Meters
from plait_operator.controller.store import Key, Store, owner_key
from plait_operator.observed import Manifest

log = logging.getLogger("plait.operator.transport")

_BEAT_S: Final = 2.0
# kopf asks for the credentials again after this; a projected token lives an hour and is renewed before.
_CREDENTIALS_S: Final = 600.0


class _Pauses:
    """Seconds between kopf's attempts. There is no last one.

    After it the watch would end, and with it kopf and this process, although it may be one namespace of many
    that is gone, with the right to look at it.
    """

    def __iter__(self) -> Iterator[float]:
        yield from (0.5, 1.0, 2.0, 4.0, 8.0)
        while True:
            yield 15.0


class Transport:
    """Watches deployments and roles by kopf. `changed` is told every key."""

    def __init__(
        self,
        connection: Connection,
        *,
        namespaces: Sequence[str],
        store: Store,
        changed: Callable[[Key], None],
        meters: Meters,
    ) -> None:
        self._connection = connection
        self._namespaces = list(namespaces)
        self._store = store
        self._changed = changed
        self._meters = meters
        self._stop = threading.Event()
        self.ready = threading.Event()
        self.beat_at = time.monotonic()
        """When kopf's loop last ran."""
        self.failure = ""
        """Why kopf has ended by itself, empty while it has not."""
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    def stop(self, *, timeout_s: float) -> None:
        """End it; it ends with the process if it takes longer."""
        self._stop.set()
        self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def heard(self, event: Any) -> None:
        """An event of a deployment or role, as kopf gives it: `type` and `object`."""
        thing: Manifest = dict(event["object"])
        gone = event["type"] == "DELETED"
        self._meters.watch_events.labels(thing["kind"]).inc()
        if thing["kind"] == ROLE.kind:
            # What it says comes by its informer, which cannot lose a delete; this is only sooner.
            key = owner_key(thing)
        elif gone:
            key = Key(thing["metadata"]["namespace"], thing["metadata"]["name"])
            self._store.drop_deployment(key, uid=thing["metadata"]["uid"])
        else:
            key = self._store.put_deployment(thing)
        if key is not None:
            self._changed(key)

    def _run(self) -> None:
        try:
            asyncio.run(self._operate())
            if not self._stop.is_set():
                self.failure = "kopf ended without being asked to"
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            log.exception("kopf ended")

    async def _operate(self) -> None:
        beat = asyncio.create_task(self._beat())
        try:
            await kopf.operator(
                registry=self._registry(),
                settings=settings(),
                # Peering is off; kopf would still ask who runs it, and a pod's user has no name.
                identity=cast(Any, "plait"),
                standalone=True,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=self._stop,
                ready_flag=self.ready,
            )
        finally:
            beat.cancel()

    async def _beat(self) -> None:
        while True:
            self.beat_at = time.monotonic()
            await asyncio.sleep(_BEAT_S)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def _login(**_: Any) -> kopf.ConnectionInfo:
            return credentials(self._connection)

        for kind in (DEPLOYMENT, ROLE):

            @kopf.on.event(GROUP, VERSION, kind.plural, registry=registry, id=f"heard-{kind.plural}")
            async def _heard(event: Any, **_: Any) -> None:
                self.heard(event)

        return registry


def settings() -> kopf.OperatorSettings:
    """kopf's settings for the transport of keys."""
    told = kopf.OperatorSettings()
    told.posting.enabled = False
    told.posting.loggers = False
    told.peering.standalone = True
    # No watching of definitions and namespaces, which would need rights all over the cluster.
    told.scanning.disabled = True
    told.queueing.worker_limit = 20
    told.queueing.idle_timeout = 1.0
    told.watching.server_timeout = 300
    told.watching.connect_timeout = 10.0
    told.watching.inactivity_timeout = 90.0
    told.watching.chunk_size = 200
    told.networking.request_timeout = 30.0
    told.networking.connect_timeout = 10.0
    told.networking.error_backoffs = _Pauses()
    # Nothing is persisted; should kopf ever try, it must not take our finalizer for its own.
    told.persistence.finalizer = f"{GROUP}/unused-by-kopf"
    told.process.ultimate_exiting_timeout = None
    return told


def credentials(connection: Connection) -> kopf.ConnectionInfo:
    """What the official client uses, as kopf wants it."""
    told = connection.configuration
    header = connection.headers().get("authorization", "")
    scheme, _, token = header.partition(" ")
    return kopf.ConnectionInfo(
        server=connection.server,
        ca_path=told.ssl_ca_cert or None,
        insecure=not told.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=told.cert_file or None,
        private_key_path=told.key_file or None,
        expiration=datetime.now(UTC) + timedelta(seconds=_CREDENTIALS_S),
    )
