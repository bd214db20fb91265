"""What the planner tells the status: counts per role, and how far things have come."""

from __future__ import annotations

from typing import Literal, NamedTuple

from plait.contract.violation import Violation


class RoleView(NamedTuple):
    """Pods of one role at this moment, over all revisions unless a name says `updated`.

    `wanted`: replicas asked for (an autoscaler's figure where one owns them). `revision`: the newest one
    (empty: not known yet). `pods`: that are there and are not on their way out. `ready`: whose Ready
    condition holds. `serving`: ready pods that have a partner, so that they can take requests. `updated`,
    `updated_ready`: those of `revision` alone. Success is told by these two: pods of an old revision say
    nothing about the new one.
    """

    wanted: int = 0
    revision: str = ""
    pods: int = 0
    ready: int = 0
    serving: int = 0
    updated: int = 0
    updated_ready: int = 0


class View(NamedTuple):
    """What the planner knows that the cluster's objects do not say by themselves.

    `violations`: why the spec was refused; children then stay as they were. `inspect`: whether the model's
    shape is known, being read, or could not be read (`inspect_message`: why, and what to do).
    `stuck`: why a rollout cannot go on, with the fix; empty while it can. `rolling`: pods of an old revision
    are being replaced. `removing`: the deployment is being deleted.
    """

    prefill: RoleView
    decode: RoleView
    router: RoleView
    violations: tuple[Violation, ...] = ()
    inspect: Literal["known", "running", "failed"] = "known"
    inspect_message: str = ""
    stuck: str = ""
    rolling: bool = False
    removing: bool = False
