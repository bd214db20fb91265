"""One look at one deployment: what is known of it, a plan for it, and the plan carried out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from pydantic import ValidationError

from plait_operator.actions import Plan
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.apply.applier import Applier, Outcome
from plait_operator.apply.client import Client
from plait_operator.apply.errors import FencedError, UnreachableError
from plait_operator.apply.kinds import DEPLOYMENT
from plait_operator.apply.meters import Meters
from plait_operator.children.context import Release
from plait_operator.controller import unreadable
from plait_operator.controller.queue import Turn, WorkQueue
from plait_operator.controller.store import Key, Snapshot, Store
from plait_operator.observed import Observed, Ref
from plait_operator.validate import read

log = logging.getLogger("plait.operator.reconcile")

Planner: TypeAlias = Callable[[SharedKVDeployment, Observed, Release], Plan]
"""make_plan(deployment, observed, release)."""

_MOVED_S: Final = 1.0
_UNKNOWN_S: Final = 5.0
PATIENCE_S: Final = 300.0
"""For an operator of the definition's own release to come, where only fields are unknown."""


class Reconciler:
    """Many workers share one; the queue keeps two of them off the same deployment.

    `known`: whether all that there is in a namespace is known; before that nothing there is touched.
    """

    def __init__(
        self,
        *,
        store: Store,
        queue: WorkQueue[Key],
        client: Client,
        applier: Applier,
        meters: Meters,
        release: Release,
        apis: Callable[[], frozenset[str]],
        known: Callable[[str], bool],
        planner: Planner,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._queue = queue
        self._client = client
        self._applier = applier
        self._meters = meters
        self._release = release
        self._apis = apis
        self._known = known
        self._planner = planner
        self._clock = clock
        self._newer: dict[Key, float] = {}
        self._refusals: dict[Key, dict[Ref, str]] = {}
        self._lock = threading.Lock()

    def turn(self, turn: Turn[Key]) -> None:
        """A look, whatever comes of it. Raises FencedError only: then this process has no right to go on."""
        key = turn.key
        began = time.monotonic()
        try:
            result = self._look(key, since=turn.since)
        except FencedError:
            raise
        except UnreachableError as error:
            result = "unreachable"
            self._again(key, str(error))
        except Exception:
            # One deployment that cannot be handled must not take the others with it.
            log.exception("%s/%s: this is a fault of the operator", *key)
            result = "fault"
            self._again(key, "a fault of the operator")
        self._meters.reconciles.labels(result).inc()
        self._meters.reconcile_seconds.observe(time.monotonic() - began)

    def _look(self, key: Key, *, since: float) -> str:
        snapshot = self._store.view(key)
        if snapshot is None:
            self._remember(key, {})
            self._newer.pop(key, None)
            self._queue.forget(key)
            return "gone"
        if not self._known(key.namespace):
            self._queue.add(key, after_s=_UNKNOWN_S)
            return "early"
        plan, result = self._plan(key, snapshot)
        outcome = self._applier.carry_out(plan, body=snapshot.body, known=snapshot.children)
        if outcome.writes:
            self._meters.reaction_seconds.observe(time.monotonic() - since)
        return self._after(key, plan, outcome, result)

    def _plan(self, key: Key, snapshot: Snapshot) -> tuple[Plan, str]:
        began = time.monotonic()
        now = self._client.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            deployment = SharedKVDeployment.of(snapshot.body)
        except ValidationError as error:
            if left := self._patience_s(key, error):
                return Plan((), again_s=left), "unreadable"
            # Now the one that tells people about it, and takes longer.
            _, violations = read(snapshot.body)
            return unreadable.plan(snapshot.body, [str(v) for v in violations], now=now), "unreadable"
        self._newer.pop(key, None)
        with self._lock:
            refusals = dict(self._refusals.get(key, {}))
        observed = Observed(
            children=snapshot.children,
            strays=snapshot.strays,
            pods=snapshot.pods,
            routers=snapshot.routers,
            apis=self._apis(),
            refusals=refusals,
            now=now,
            fits=snapshot.fits,
        )
        plan = self._planner(deployment, observed, self._release)
        self._store.keep(key, snapshot)
        self._meters.plan_seconds.observe(time.monotonic() - began)
        for action in plan.actions:
            log.debug("%s/%s: %s %s", *key, type(action).__name__, getattr(action, "why", ""))
        return plan, "done"

    def _patience_s(self, key: Key, error: ValidationError) -> float:
        """Seconds to say nothing yet of a spec that cannot be read.

        An upgrade brings the definitions first. With them every object may have fields, with their defaults,
        that this operator does not know and the one to come does: nothing is wrong, and least of all may a
        deployment that goes in that moment lose its drain.
        """
        if any(detail["type"] != "extra_forbidden" for detail in error.errors(include_url=False)):
            return 0.0
        left = self._newer.setdefault(key, self._clock()) + PATIENCE_S - self._clock()
        if left > PATIENCE_S - 1.0:
            log.warning("%s/%s: the spec has fields that this operator does not know", *key)
        return max(0.0, left)

    def _after(self, key: Key, plan: Plan, outcome: Outcome, result: str) -> str:
        """Decide when to look again.

        What this process has written comes back by the watch, and is no news then. So a look that follows
        from its own writes has to be asked for: the status still tells of a refusal that is over, and the
        object that makes way for another is gone.
        """
        before = self._remember(key, outcome.refusals)
        if outcome.missing and not self._went(key):
            # A namespace that went while the kind was not served has left it behind, out of reach.
            self._again(key, "the API server shows it, but lets nobody write it: its namespace is gone")
            return "refused"
        if outcome.refusals:
            # Soon at first, so that the status tells of it; then later and later.
            self._again(key, next(iter(outcome.refusals.values())))
            result = "refused"
        else:
            self._queue.forget(key)
            if before or outcome.went:
                self._queue.add(key)
            if outcome.again:
                self._queue.add(key, after_s=_MOVED_S)
        if plan.again_s is not None:
            self._queue.add(key, after_s=plan.again_s)
        return result

    def _went(self, key: Key) -> bool:
        """A write found no deployment: ask, for kopf tells nothing of what went while its watch was down."""
        if self._client.read(DEPLOYMENT.path(key.namespace, key.name), kind=DEPLOYMENT.kind) is not None:
            return False
        self._store.drop_deployment(key)
        self._queue.add(key)
        return True

    def _again(self, key: Key, why: str) -> None:
        pause = self._queue.retry(key)
        self._meters.retries.inc()
        log.info("%s/%s: again in %.1f s: %s", *key, pause, why)

    def _remember(self, key: Key, refusals: dict[Ref, str]) -> dict[Ref, str]:
        """Those before."""
        with self._lock:
            before = self._refusals.get(key, {})
            if refusals:
                self._refusals[key] = refusals
            else:
                self._refusals.pop(key, None)
        return before


class Workers:
    """Threads that take turns from the queue. `fenced` is called when the right to write has ended."""

    def __init__(
        self, count: int, *, queue: WorkQueue[Key], reconciler: Reconciler, fenced: Callable[[], None]
    ) -> None:
        self._queue = queue
        self._reconciler = reconciler
        self._fenced = fenced
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"worker-{n}", daemon=True) for n in range(count)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self, *, timeout_s: float) -> None:
        """No new turns; wait for those under way, in all for so long."""
        self._stop.set()
        self._queue.close()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def dead(self) -> int:
        """Threads that were started and have ended."""
        return sum(t.ident is not None and not t.is_alive() for t in self._threads)

    def _run(self) -> None:
        while not self._stop.is_set():
            turn = self._queue.get(timeout_s=1.0)
            if turn is None:
                continue
            try:
                self._reconciler.turn(turn)
            except FencedError as error:
                log.error("%s", error)
                self._fenced()
                return
            finally:
                self._queue.done(turn.key)
