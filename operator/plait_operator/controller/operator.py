"""The operator as a process: everything put together, started in order, watched, and stopped."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import socket
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web

from plait_operator.apply.applier import Applier
from plait_operator.apply.client import Client
from plait_operator.apply.connection import Connection
from plait_operator.apply.errors import ApplyError
from plait_operator.apply.events import Recorder
from plait_operator.apply.kinds import DEPLOYMENT
from plait_operator.apply.limit import Limiter
from plait_operator.apply.meters import Meters
from plait_operator.children.context import Release
from plait_operator.controller import apis
from plait_operator.controller.census import census
from plait_operator.controller.certificates import Certificates, Issuer
from plait_operator.controller.election import Election, Fence, Terms
from plait_operator.controller.following import Following
from plait_operator.controller.liveness import SILENT_S, STUCK_S, Liveness, application
from plait_operator.controller.queue import WorkQueue
from plait_operator.controller.reconcile import Planner, Reconciler, Workers
from plait_operator.controller.routers import RouterWatch
from plait_operator.controller.store import Key, Store
from plait_operator.controller.transport import Transport
from plait_operator.controller.watching import Watcher

log = logging.getLogger("plait.operator")

_APIS_S: Final = 300.0
_RESYNC_S: Final = 300.0
_APART_S: Final = 0.2
_STOP_S: Final = 8.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """How one operator runs. `namespaces`: those it looks after (none: all). Times in seconds."""

    release: Release
    kubeconfig: Path | None = None
    namespaces: tuple[str, ...] = ()
    lease: str = "plait-operator"
    lease_s: float = 30.0
    workers: int = 8
    rate: float = 100.0
    host: str = "0.0.0.0"
    port: int = 8081
    resync_s: float = _RESYNC_S
    issuer: Issuer | None = None
    """Of the webhook's certificate; None: it is not ours to keep."""
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}")


class Operator:
    """One process. `planner`: make_plan; tests may bring their own."""

    def __init__(self, options: Options, *, planner: Planner) -> None:
        self._options = options
        self._meters = Meters()
        self._store = Store()
        self._queue: WorkQueue[Key] = WorkQueue(most_s=120.0, apart_s=_APART_S)
        self._connection = Connection.load(options.kubeconfig, pool=options.workers + 4)
        terms = Terms.of(options.lease_s)
        self._terms = terms
        self._fence = Fence()
        self._client = Client(
            self._connection,
            fence=self._fence,
            limiter=Limiter(rate=options.rate, burst=max(1, int(options.rate * 2))),
            meters=self._meters,
            timeout_s=terms.write,
        )
        self._election = Election(
            self._client,
            namespace=options.release.namespace,
            name=options.lease,
            identity=options.identity,
            terms=terms,
            fence=self._fence,
        )
        self._following = Following(
            options.namespaces,
            store=self._store,
            meters=self._meters,
            changed=self._queue.add,
            hurried=self._pods_changed,
        )
        applier = Applier(self._client, Recorder(options.identity), self._store)
        reconciler = Reconciler(
            store=self._store,
            queue=self._queue,
            client=self._client,
            applier=applier,
            meters=self._meters,
            release=options.release,
            apis=lambda: self._following.served,
            known=self._following.is_known,
            planner=planner,
        )
        self._workers = Workers(
            options.workers, queue=self._queue, reconciler=reconciler, fenced=lambda: self.end("fenced")
        )
        self._transport = Transport(
            self._connection,
            namespaces=options.namespaces,
            store=self._store,
            changed=self._queue.add,
            meters=self._meters,
        )
        self._certificates = None if options.issuer is None else Certificates(self._client, options.issuer)
        self._routers: RouterWatch | None = None
        self._beat_at = time.monotonic()
        self._working = False
        self._over = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._why = ""

    def run(self) -> int:
        """Until a signal, or until this process may not go on. The exit status."""
        return asyncio.run(self._run())

    def end(self, why: str) -> None:
        """End the process; from any thread."""
        loop = self._loop
        if loop is not None and not self._why:
            self._why = why
            loop.call_soon_threadsafe(self._over.set)

    async def _run(self) -> int:
        self._loop = loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end, "signal")
        watcher = Watcher(self._connection)
        runner = await self._serve()
        background = [
            asyncio.create_task(part, name=name)
            for name, part in {"beat": self._beat(), "start": self._start(watcher)}.items()
        ]
        try:
            await self._over.wait()
        finally:
            log.info("stopping: %s", self._why)
            await asyncio.to_thread(self._stop)
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._following.stop()
            await watcher.close()
            await runner.cleanup()
        return 0 if self._why == "signal" else 1

    async def _start(self, watcher: Watcher) -> None:
        """In order: the definitions are there, all that exists is known, and only then somebody works."""
        try:
            await self._installed(watcher)
            self._transport.start()
            self._election.start()
            await asyncio.gather(
                self._follow_kinds_on(watcher),
                census(
                    watcher,
                    self._options.namespaces,
                    store=self._store,
                    changed=self._queue.add,
                    meters=self._meters,
                ),
                self._resync(),
                self._work(),
                self._ask(),
            )
        except Exception:
            log.exception("this is a fault of the operator")
            self.end("fault")

    async def _installed(self, watcher: Watcher) -> None:
        while True:
            try:
                if await apis.own(watcher):
                    await self._following.look(watcher)
                    return
                log.warning("the cluster has no %s yet: install the chart's definitions", DEPLOYMENT.kind)
            except ApplyError as error:
                log.warning("the API server cannot be asked: %s", error)
            await asyncio.sleep(2.0)

    async def _follow_kinds_on(self, watcher: Watcher) -> None:
        while True:
            await asyncio.sleep(_APIS_S * random.uniform(0.8, 1.2))
            before = self._following.served
            try:
                await self._following.look(watcher)
            except ApplyError as error:
                log.warning("the API server cannot be asked for its kinds: %s", error)
            if self._following.served != before:
                self._all_again(spread_s=30.0)

    async def _resync(self) -> None:
        """Every deployment once a period, at any moment of it: a thousand at once would be a storm.

        What looks have found of children is found anew in each period.
        """
        while True:
            await asyncio.sleep(self._options.resync_s)
            for key in self._store.deployments():
                self._store.doubt(key)
            self._all_again(spread_s=self._options.resync_s)

    async def _work(self) -> None:
        """Begin once everything is known and this process leads; end when it leads no more."""
        while self._following.waiting():
            await asyncio.sleep(0.1)
        while not (self._transport.ready.is_set() and self._election.won.is_set()):
            if self._election.lost.is_set() or self._transport.failure:
                break
            await asyncio.sleep(0.1)
        else:
            log.info("working with %d threads", self._options.workers)
            self._working = True
            self._workers.start()
            if self._certificates is not None:
                self._certificates.start()
        while not self._election.lost.is_set():
            if not self._transport.alive:
                self.end(f"transport: {self._transport.failure}")
                return
            await asyncio.sleep(0.5)
        self.end("the lead is lost")

    async def _ask(self) -> None:
        self._routers = RouterWatch(
            store=self._store, changed=self._queue.add, active=lambda: self._working, meters=self._meters
        )
        await self._routers.run()

    def _pods_changed(self, key: Key) -> None:
        self._queue.add(key)
        if self._routers is not None:
            self._routers.hurry(key)

    def _all_again(self, *, spread_s: float) -> None:
        for key in self._store.deployments():
            self._queue.add(key, after_s=random.uniform(0.0, spread_s))

    async def _beat(self) -> None:
        while True:
            self._beat_at = time.monotonic()
            if dead := self._liveness().dead():
                log.error("not alive: %s", "; ".join(dead))
            await asyncio.sleep(5.0)

    def _stop(self) -> None:
        """The right to write ends first, then the work, then the Lease goes to whoever waits for it."""
        self._workers.stop(timeout_s=_STOP_S / 2)
        if self._certificates is not None:
            self._certificates.stop(timeout_s=1.0)
        self._election.stop()
        self._transport.stop(timeout_s=_STOP_S / 2)
        self._client.close()

    async def _serve(self) -> web.AppRunner:
        app = application(self._liveness(), self._meters, scrape=self._scrape)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self._options.host, self._options.port).start()
        return runner

    def _scrape(self) -> None:
        self._meters.queue_depth.set(self._queue.depth)
        self._meters.leader.set(float(self._fence.left_s > 0))
        for kind, count in self._store.counts().items():
            self._meters.objects.labels(kind).set(count)

    def _liveness(self) -> Liveness:
        return Liveness(
            alive={
                "watch": self._following.silent,
                "transport": self._transport_trouble,
                "workers": self._worker_trouble,
            },
            ready={"start": self._not_started},
        )

    def _transport_trouble(self) -> str:
        if self._transport.failure:
            return self._transport.failure
        age = time.monotonic() - self._transport.beat_at
        if self._transport.ready.is_set() and age > SILENT_S:
            return f"kopf's loop has not run for {age:.0f} s"
        return ""

    def _worker_trouble(self) -> str:
        if self._working and self._workers.dead:
            return f"{self._workers.dead} of {self._options.workers} threads have ended"
        if self._queue.longest_turn_s > STUCK_S:
            return f"a turn has taken {self._queue.longest_turn_s:.0f} s"
        return ""

    def _not_started(self) -> str:
        if not self._following.begun:
            return "the API server has not been asked yet"
        if waiting := self._following.waiting():
            return f"not all is known yet: {', '.join(sorted({i.kind.plural for i in waiting}))}"
        return "" if self._transport.ready.is_set() else "kopf has not started yet"
