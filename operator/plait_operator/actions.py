"""What a plan may ask for. Data only: `apply` carries it out, in order.

A refusal of one action is kept for `Observed.refusals` and the rest goes on, so none may need another's
success to be safe. Two exceptions: when the finalizer cannot be set nothing else is done, and it is not taken
off in a plan of which anything before was refused. A lost connection, or a lost lead, ends the plan there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from plait_operator.names import MANAGER
from plait_operator.observed import Manifest, Ref


class Apply(NamedTuple):
    """Server-side apply of a whole child, taking its fields by force.

    `manager`: the operator's own, or SEED for a field that is given a first value and then left to others.
    """

    manifest: Manifest
    why: str = ""
    manager: str = MANAGER


class Delete(NamedTuple):
    """Delete a child, and in the background what it owns. `uid`: only this one, not a new one of its name.

    `version`: only as it was seen (empty: however it is by then).
    """

    ref: Ref
    uid: str
    why: str = ""
    version: str = ""


class SetGate(NamedTuple):
    """Open or close the router's readiness gate of a pod (its status, condition ADMITTED_GATE)."""

    pod: str
    uid: str
    open: bool
    why: str = ""


class SetFinalizer(NamedTuple):
    """Add or remove the operator's finalizer on the deployment."""

    present: bool


class WriteStatus(NamedTuple):
    """Replace the status subresource of the deployment, or of its role child (`role` given)."""

    status: Manifest
    role: str = ""


class Event(NamedTuple):
    """A Kubernetes Event on the deployment."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


Action: TypeAlias = Apply | Delete | SetGate | SetFinalizer | WriteStatus | Event


class Plan(NamedTuple):
    """Actions in order. `again_s`: look again after so many seconds even if nothing is told (None: no)."""

    actions: tuple[Action, ...]
    again_s: float | None = None
