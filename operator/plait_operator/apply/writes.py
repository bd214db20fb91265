"""Actions as requests. Pure: what is sent is decided here, and nothing is sent."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote

from plait_operator.actions import Apply, Delete, SetFinalizer, SetGate, WriteStatus
from plait_operator.apply.client import Request
from plait_operator.apply.kinds import DEPLOYMENT, POD, ROLE, kind_of
from plait_operator.names import ADMITTED_GATE, FINALIZER, MANAGER, short
from plait_operator.observed import Manifest

GATE_MANAGER: Final = "plait-operator-gate"
"""Field manager of the readiness gate: it must never own anything else of a pod's status."""

_SSA: Final = "application/apply-patch+yaml"
_JSON_PATCH: Final = "application/json-patch+json"


class Target(NamedTuple):
    """The deployment that a plan is about."""

    namespace: str
    name: str
    uid: str

    def path(self, subresource: str = "") -> str:
        """Its path."""
        return DEPLOYMENT.path(self.namespace, quote(self.name, safe=""), subresource)


def apply(action: Apply, target: Target) -> Request:
    """Server-side apply of the whole manifest. Other managers' values of its fields are taken over."""
    manifest = action.manifest
    kind = kind_of(manifest["apiVersion"], manifest["kind"])
    path = kind.path(target.namespace, quote(manifest["metadata"]["name"], safe=""))
    return Request("PATCH", path, kind.kind, "apply", _applied(action.manager), _SSA, manifest)


def delete(action: Delete, target: Target) -> Request:
    """Only the object with this uid (and version); what it owns goes in the background."""
    kind = kind_of(action.ref.api_version, action.ref.kind)
    meant = {"uid": action.uid, **({"resourceVersion": action.version} if action.version else {})}
    body: Manifest = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": meant,
    }
    path = kind.path(target.namespace, quote(action.ref.name, safe=""))
    return Request("DELETE", path, kind.kind, "delete", body=body)


def gate(action: SetGate, target: Target, *, now: str) -> Request:
    """One condition of a pod's status. `now`: RFC 3339, the time of the change.

    The uid makes it fail on a new pod of the same name. Conditions are a map by type to the API server, so
    the kubelet's own stay untouched.
    """
    condition = {
        "type": ADMITTED_GATE,
        "status": "True" if action.open else "False",
        "reason": "TakenIn" if action.open else "NotTakenIn",
        "message": action.why,
        "lastTransitionTime": now,
    }
    body: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": action.pod, "namespace": target.namespace, "uid": action.uid},
        "status": {"conditions": [condition]},
    }
    path = POD.path(target.namespace, quote(action.pod, safe=""), "status")
    return Request("PATCH", path, "Pod", "gate", _applied(GATE_MANAGER), _SSA, body)


def finalizer(action: SetFinalizer, target: Target, *, live: Manifest) -> Request | None:
    """None: it is so already. `live`: the deployment as it is.

    By JSON patch with tests: apply would not take off what a person has put on by hand as well, and without
    the tests another finalizer that came or went meanwhile could be hit.
    """
    held = list(live["metadata"].get("finalizers") or ())
    if action.present == (FINALIZER in held):
        return None
    steps: list[Manifest] = [{"op": "test", "path": "/metadata/uid", "value": target.uid}]
    if not action.present:
        at = f"/metadata/finalizers/{held.index(FINALIZER)}"
        steps += [{"op": "test", "path": at, "value": FINALIZER}, {"op": "remove", "path": at}]
    elif held:
        steps.append({"op": "test", "path": "/metadata/finalizers", "value": held})
        steps.append({"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER})
    else:
        steps.append({"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]})
    query = (("fieldManager", MANAGER),)
    return Request("PATCH", target.path(), DEPLOYMENT.kind, "finalizer", query, _JSON_PATCH, steps)


def status(action: WriteStatus, target: Target, *, uid: str) -> Request:
    """Replace the whole status: also what somebody else wrote into it. `uid`: of the object written."""
    if action.role:
        name = quote(short(target.name, action.role), safe="")
        path, kind = ROLE.path(target.namespace, name, "status"), ROLE.kind
    else:
        path, kind = target.path("status"), DEPLOYMENT.kind
    steps: list[Manifest] = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status", "value": action.status},
    ]
    return Request("PATCH", path, kind, "status", (("fieldManager", MANAGER),), _JSON_PATCH, steps)


def _applied(manager: str) -> tuple[tuple[str, str], ...]:
    return (("fieldManager", manager), ("force", "true"))
