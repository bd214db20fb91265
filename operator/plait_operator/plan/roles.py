"""What a rollout looks at: the two roles, their revisions, and the budget; and what it decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Role = Literal["prefill", "decode"]
OTHER: Final[Mapping[Role, Role]] = {"prefill": "decode", "decode": "prefill"}
ROLES: Final[tuple[Role, Role]] = ("prefill", "decode")


class Budget(NamedTuple):
    """Pods per role that may be missing, and that may be there beyond the wanted ones."""

    max_unavailable: int
    max_surge: int


@dataclass(frozen=True, kw_only=True)
class RevisionState:
    """One revision of a role: its workload and its pods (groups, where a group is several pods).

    `wire`: wire hash. `replicas`: of the workload's spec; 0 and `exists` False when there is none.
    `reported`: replicas in the workload's status, which may lag. `settled`: its controller has seen the
    spec. `pods`: seen and not being deleted; `deleting`: seen and on their way out. `ready`: of `pods`.
    `failing`: of `pods`, those that are not ready and say why they won't be by themselves. `trouble`: that,
    or why there are no pods.
    `ready_at`: for an ordered set (LeaderWorkerSet), the indices of its ready groups: it is cut from the
    top, whereas a Deployment lets go of pods that are not ready first.
    """

    revision: str
    wire: str
    replicas: int = 0
    exists: bool = True
    reported: int = 0
    settled: bool = True
    pods: int = 0
    deleting: int = 0
    ready: int = 0
    failing: int = 0
    trouble: str = ""
    ready_at: tuple[int, ...] | None = None

    def ready_with(self, replicas: int) -> int:
        """Ready pods that are left when the workload has so many replicas."""
        if self.ready_at is not None:
            return sum(1 for index in self.ready_at if index < replicas)
        return min(self.ready, replicas)

    def hoped_with(self, replicas: int) -> int:
        """Pods that are ready or may be so again, with so many replicas."""
        return max(self.ready_with(replicas), min(replicas, self.replicas - self.failing))

    @property
    def held(self) -> int:
        """Pods that are there or may be, whether seen or not."""
        return max(self.pods, self.replicas, self.reported) + self.deleting

    @property
    def over(self) -> bool:
        """The workload is empty and known to be, so that it can be deleted."""
        return (
            self.exists
            and self.settled
            and not (self.replicas or self.reported or self.pods or self.deleting)
        )


@dataclass(frozen=True, kw_only=True)
class RoleState:
    """One role: `wanted` replicas of revision `target`, whose wire hash is `wire`; and what there is."""

    wanted: int
    target: str
    wire: str
    revisions: tuple[RevisionState, ...] = ()

    def __post_init__(self) -> None:
        if all(one.revision != self.target for one in self.revisions):
            new = RevisionState(revision=self.target, wire=self.wire, exists=False)
            object.__setattr__(self, "revisions", (*self.revisions, new))


class Step(NamedTuple):
    """What to do next. Maps: revision -> replicas, of every revision that has or needs a workload.

    `finished`: per role, revisions whose workload is empty and may be deleted. `rolling`: pods of other
    revisions are being replaced.
    `stuck`: why it can't go on, with the fix; empty while it can, or while it only waits.
    """

    prefill: Mapping[str, int]
    decode: Mapping[str, int]
    finished: Mapping[Role, tuple[str, ...]]
    rolling: bool
    stuck: str = ""

    def of(self, role: Role) -> Mapping[str, int]:
        """The replicas of a role."""
        return self.prefill if role == "prefill" else self.decode
