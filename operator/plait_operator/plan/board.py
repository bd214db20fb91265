"""The state within one step of a rollout: what there is, the moves made so far, and what they would leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from plait_operator.plan.roles import OTHER, ROLES, Budget, RevisionState, Role, RoleState


@dataclass
class Board:
    """`now`: replicas by role and revision after the moves. `strict`: keep the order that is preferred."""

    roles: Mapping[Role, RoleState]
    budget: Budget
    strict: bool = True
    moved: bool = False
    now: dict[tuple[Role, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now = {
            (role, one.revision): one.replicas for role in ROLES for one in self.roles[role].revisions
        }

    # What there is.

    def each(self, role: Role) -> Iterator[tuple[RevisionState, int]]:
        return ((one, self.now[role, one.revision]) for one in self.roles[role].revisions)

    def asked(self, role: Role) -> int:
        return sum(count for _, count in self.each(role))

    def held(self, role: Role) -> int:
        """Pods that may be there after the moves; what was lowered frees nothing before it is seen gone."""
        return sum(one.held + max(0, count - one.replicas) for one, count in self.each(role))

    def target(self, role: Role) -> int:
        return self.now[role, self.roles[role].target]

    def limit(self, role: Role) -> int:
        return self.roles[role].wanted + self.budget.max_surge

    def share(self, role: Role, wire: str) -> int:
        """Replicas of a wire."""
        return sum(count for one, count in self.each(role) if one.wire == wire)

    def ready(self, role: Role, wire: str) -> int:
        return sum(one.ready_with(count) for one, count in self.each(role) if one.wire == wire)

    def serving(self, role: Role) -> int:
        other = OTHER[role]
        return sum(one.ready_with(count) for one, count in self.each(role) if self.ready(other, one.wire) > 0)

    def hoped(self, role: Role) -> int:
        """Pods that serve or would, were their partners ready; of the target only those that are ready."""
        state, other = self.roles[role], OTHER[role]
        return sum(
            one.ready_with(count) if one.revision == state.target else one.hoped_with(count)
            for one, count in self.each(role)
            if self.roles[other].wanted == 0 or one.wire == state.wire or self.share(other, one.wire) > 0
        )

    # What is left to do.

    @property
    def unfinished(self) -> bool:
        return self.replacing or any(
            self.target(role) != self.roles[role].wanted or self.ready_target(role) < self.roles[role].wanted
            for role in ROLES
        )

    def ready_target(self, role: Role) -> int:
        state = self.roles[role]
        return sum(one.ready for one in state.revisions if one.revision == state.target)

    @property
    def replacing(self) -> bool:
        """Pods of other revisions than the target are there, or are asked for."""
        return any(
            one.revision != self.roles[role].target and (count or one.held)
            for role in ROLES
            for one, count in self.each(role)
        )

    @property
    def settled(self) -> bool:
        """Nothing is under way that would change the state by itself, but for pods that start."""
        return all(
            one.settled and not one.deleting and one.pods <= one.replicas and one.reported <= one.replicas
            for role in ROLES
            for one in self.roles[role].revisions
        )

    @property
    def starting(self) -> bool:
        """Target pods are asked for that are not ready, and do not say that they never will be."""
        return any(
            one.replicas > one.ready + one.failing
            for role in ROLES
            for one in self.roles[role].revisions
            if one.revision == self.roles[role].target
        )

    def replicas_of(self, role: Role) -> dict[str, int]:
        target = self.roles[role].target
        return {one.revision: n for one, n in self.each(role) if one.exists or one.revision == target}

    def finished(self, role: Role) -> tuple[str, ...]:
        target = self.roles[role].target
        return tuple(
            sorted(
                one.revision for one, n in self.each(role) if one.revision != target and n == 0 and one.over
            )
        )

    # Moves.

    def put(self, role: Role, revision: str, replicas: int) -> None:
        self.now[role, revision] = replicas
        self.moved = True

    def trial(self, role: Role, revision: str, replicas: int) -> Board:
        copy = replace(self)
        copy.moved = self.moved
        copy.now = {**self.now, (role, revision): replicas}
        return copy

    def floor(self, role: Role, *, full: bool) -> int:
        """Serving pods that must stay; `full`: all that are wanted, so that nothing is given up."""
        state = self.roles[role]
        return state.wanted if full else max(0, state.wanted - self.budget.max_unavailable)

    def keeps(self, after: Board, role: Role, *, full: bool) -> bool:
        """Whether `after` (a lowering in `role`) leaves both roles what they must have."""
        for one in ROLES:
            floor = self.floor(one, full=full and one == role)
            alone = self.roles[OTHER[one]].wanted == 0
            if not alone and after.serving(one) < min(self.serving(one), floor):
                return False
            # The other role at no replicas is what was asked for: it does not keep this one's pods alive.
            if after.hoped(one) < min(self.hoped(one), floor):
                return False
        return True

    @property
    def opening(self) -> bool:
        """A new wire whose first pods are yet to be asked for, on a role at least."""
        return all(self.roles[role].wanted for role in ROLES) and any(
            self.share(role, self.roles[role].wire) == 0 for role in ROLES
        )

    def with_room(self, role: Role) -> Board | None:
        """This board with room for one more pod of `role`, if need be by letting an old one go."""
        if self.asked(role) < self.limit(role):
            return self
        for revision in self.leaving(role):
            after = self.trial(role, revision, self.now[role, revision] - 1)
            if self.keeps(after, role, full=False):
                return after
        return None

    def rank(self, wire: str) -> tuple[int, str]:
        """The lowest is let go first, the highest is held on to longest."""
        return sum(self.share(role, wire) for role in ROLES), wire

    def leaving(self, role: Role) -> list[str]:
        """Revisions to take pods from, in order: the least wire first, so that they end one by one."""
        state = self.roles[role]
        old = [
            (self.rank(one.wire), count, one.revision)
            for one, count in self.each(role)
            if one.revision != state.target and count
        ]
        told = [revision for *_, revision in sorted(old)]
        return [*told, state.target] if self.target(role) > state.wanted else told
