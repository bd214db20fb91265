"""A small cluster in time: workloads, their pods, and an operator that sees all of it late.

One tick is one thing that happens. The operator reads its own writes at once (what it applied is in its
store); pods and the workloads' statuses it sees `lag` ticks late.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from plait_operator.plan.roles import OTHER, ROLES, Budget, RevisionState, Role, RoleState, Step
from plait_operator.plan.rollout import step


@dataclass
class Pod:
    revision: str
    number: int
    ready: bool = False
    deleting: int = -1
    """Ticks until a deleted pod is gone; -1: it is not deleted."""


@dataclass
class Workload:
    wire: str
    replicas: int
    generation: int = 1
    seen: int = 0
    """The generation that its controller has seen."""


@dataclass(frozen=True)
class Want:
    """What a user asks for. `revision`: per role; its wire is told by its first letter."""

    prefill: int
    decode: int
    revision: tuple[str, str]
    budget: Budget

    def replicas(self, role: Role) -> int:
        return self.prefill if role == "prefill" else self.decode

    def target(self, role: Role) -> str:
        return self.revision[ROLES.index(role)]

    def floor(self, role: Role) -> int:
        if self.replicas(OTHER[role]) == 0:
            return 0
        return max(0, self.replicas(role) - self.budget.max_unavailable)

    def limit(self, role: Role) -> int:
        return self.replicas(role) + self.budget.max_surge


def wire_of(revision: str) -> str:
    return revision[0]


@dataclass
class Cluster:
    want: Want
    seed: int
    lag: int = 0
    drain: int = 3
    broken: frozenset[str] = frozenset()
    """Revisions whose pods never get ready."""
    workloads: dict[tuple[Role, str], Workload] = field(default_factory=dict)
    pods: dict[Role, list[Pod]] = field(default_factory=lambda: {"prefill": [], "decode": []})
    writes: int = 0
    last: Step | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.history: deque[tuple[dict, dict]] = deque(maxlen=self.lag + 1)
        self.numbers = 0
        self.remember()

    # What is.

    def ready(self, role: Role, wire: str | None = None) -> int:
        return sum(
            pod.ready and pod.deleting < 0 and wire in (None, wire_of(pod.revision))
            for pod in self.pods[role]
        )

    def serving(self, role: Role) -> int:
        return sum(
            pod.ready and pod.deleting < 0 and self.ready(OTHER[role], wire_of(pod.revision)) > 0
            for pod in self.pods[role]
        )

    def count(self, role: Role) -> int:
        return len(self.pods[role])

    # What is seen.

    def remember(self) -> None:
        pods = {role: [(p.revision, p.ready, p.deleting >= 0) for p in self.pods[role]] for role in ROLES}
        reported = {
            key: (load.seen, sum(p.revision == key[1] and p.deleting < 0 for p in self.pods[key[0]]))
            for key, load in self.workloads.items()
        }
        self.history.append((pods, reported))

    def view(self, role: Role) -> RoleState:
        pods, reported = self.history[0]
        revisions = {revision for one, revision in self.workloads if one == role}
        revisions |= {revision for revision, _, _ in pods[role]}
        states = []
        for revision in sorted(revisions):
            load = self.workloads.get((role, revision))
            own = [pod for pod in pods[role] if pod[0] == revision]
            alive = [pod for pod in own if not pod[2]]
            seen, there = reported.get((role, revision), (0, 0))
            failing = sum(not ready for _, ready, _ in alive) if revision in self.broken else 0
            states.append(
                RevisionState(
                    revision=revision,
                    wire=wire_of(revision),
                    replicas=load.replicas if load else 0,
                    exists=load is not None,
                    reported=there,
                    settled=load is None or seen == load.generation,
                    pods=len(alive),
                    deleting=len(own) - len(alive),
                    ready=sum(ready for _, ready, _ in alive),
                    failing=failing,
                    trouble="CrashLoopBackOff" if failing else "",
                )
            )
        target = self.want.target(role)
        return RoleState(
            wanted=self.want.replicas(role), target=target, wire=wire_of(target), revisions=tuple(states)
        )

    # What happens.

    def operate(self) -> Step:
        """The operator runs once, from what it sees."""
        told = step(self.view("prefill"), self.view("decode"), self.want.budget)
        for role in ROLES:
            for revision, replicas in told.of(role).items():
                load = self.workloads.get((role, revision))
                if load is None:
                    if replicas or revision == self.want.target(role):
                        self.workloads[role, revision] = Workload(wire_of(revision), replicas)
                        self.writes += 1
                elif load.replicas != replicas:
                    load.replicas = replicas
                    load.generation += 1
                    self.writes += 1
            for revision in told.finished[role]:
                self.remove(role, revision)
                self.writes += 1
        self.last = told
        return told

    def remove(self, role: Role, revision: str) -> None:
        """A workload is deleted, and the garbage collector deletes its pods."""
        del self.workloads[role, revision]
        for pod in self.pods[role]:
            if pod.revision == revision and pod.deleting < 0:
                pod.deleting = self.random.randint(1, self.drain)

    def control(self, role: Role, revision: str) -> None:
        """The workload's controller runs once: makes all that is missing, deletes all that is too much."""
        load = self.workloads[role, revision]
        load.seen = load.generation
        alive = [pod for pod in self.pods[role] if pod.revision == revision and pod.deleting < 0]
        for _ in range(load.replicas - len(alive)):
            self.numbers += 1
            self.pods[role].append(Pod(revision, self.numbers))
        if len(alive) > load.replicas:
            alive.sort(key=lambda pod: (pod.ready, -pod.number))
            for pod in alive[: len(alive) - load.replicas]:
                pod.deleting = self.random.randint(1, self.drain)

    def tick(self, *, operate: bool = True) -> None:
        """One event, drawn at random."""
        choice = self.random.random()
        if choice < 0.3:
            if operate:
                self.operate()
        elif choice < 0.55:
            if self.workloads:
                self.control(*self.random.choice(sorted(self.workloads)))
        elif choice < 0.8:
            starting = [
                pod
                for role in ROLES
                for pod in self.pods[role]
                if not pod.ready and pod.deleting < 0 and pod.revision not in self.broken
            ]
            if starting:
                self.random.choice(starting).ready = True
        else:
            for role in ROLES:
                for pod in self.pods[role]:
                    if pod.deleting > 0:
                        pod.deleting -= 1
                self.pods[role] = [pod for pod in self.pods[role] if pod.deleting != 0]
        self.remember()

    def settle(self, ticks: int = 4000) -> bool:
        """Run until what is wanted is there and the operator writes nothing more. False: it never came."""
        for turn in range(ticks):
            self.tick()
            if turn % 10 == 0 and self.done():
                return True
        return False

    def done(self) -> bool:
        for role in ROLES:
            target = self.want.target(role)
            if any(one == role and revision != target for one, revision in self.workloads):
                return False
            if self.count(role) != self.want.replicas(role) or self.ready(role) != self.count(role):
                return False
        for _ in range(self.lag + 1):
            self.remember()
        before = self.writes
        told = self.operate()
        return self.writes == before and not told.rolling and not told.stuck
