"""Carries out the actions of one plan, in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from plait_operator.actions import Action, Apply, Delete, Event, Plan, SetFinalizer, SetGate, WriteStatus
from plait_operator.api.base import API_VERSION
from plait_operator.apply import writes
from plait_operator.apply.client import Client
from plait_operator.apply.errors import ApiError, short
from plait_operator.apply.events import Recorder
from plait_operator.apply.kinds import DEPLOYMENT, POD, ROLE, kind_of
from plait_operator.apply.writes import Target
from plait_operator.names import MANAGER, SEED
from plait_operator.names import short as short_name
from plait_operator.observed import Manifest, Ref

log = logging.getLogger("plait.operator.apply")


class Memory(Protocol):
    """Is told what the API server answered to a write, so that the next plan need not wait for the watch."""

    def took(self, live: Manifest) -> None:
        """The object as it is after the write."""
        ...

    def went(self, namespace: str, ref: Ref, uid: str) -> None:
        """The object is deleted."""
        ...


class _GoingError(Exception):
    """The deployment is on its way out, which the plan did not know: what is left of it is void."""


@dataclass
class Outcome:
    """What came of a plan. `refusals`: by object, what the server said; `writes`: requests that it took.

    `again`: something was refused or has moved under the plan, so look again soon. `went`: objects deleted.
    """

    refusals: dict[Ref, str] = field(default_factory=dict)
    writes: int = 0
    again: bool = False
    went: int = 0
    missing: bool = False
    """The deployment itself seems to be gone."""


class Applier:
    """Many threads may use one; no two for the same deployment at once."""

    def __init__(self, client: Client, recorder: Recorder, memory: Memory) -> None:
        self._client = client
        self._recorder = recorder
        self._memory = memory

    def carry_out(self, plan: Plan, *, body: Manifest, known: Mapping[Ref, Mapping[str, Any]]) -> Outcome:
        """Do the actions of a plan made for the deployment `body`, whose children are `known`.

        A refusal of one action is kept and the rest goes on: plans order actions so that none needs another's
        success to be safe. Two exceptions: without its finalizer a deployment gets nothing, and the finalizer
        goes only where nothing failed before. What is nobody's child here is never taken over.

        Raises UnreachableError and FencedError: then the rest was not tried.
        """
        meta = body["metadata"]
        target = Target(meta["namespace"], meta["name"], meta["uid"])
        outcome = Outcome()
        for action in plan.actions:
            try:
                if self._done(action, target, body, known, outcome):
                    outcome.writes += 1
            except _GoingError:
                outcome.again = True
                break
            except ApiError as error:
                if not _refused(action, target, error, outcome):
                    break
        return outcome

    def _done(
        self,
        action: Action,
        target: Target,
        body: Manifest,
        known: Mapping[Ref, Mapping[str, Any]],
        outcome: Outcome,
    ) -> bool:
        """Whether something was written."""
        match action:
            case Apply(manifest=manifest):
                ref = Ref.of(manifest)
                if ref not in known and not self._is_free(ref, target) and action.manager == SEED:
                    outcome.again = True  # it has its first value, and an autoscaler may have given it more
                    return False
                self._memory.took(self._client.write(writes.apply(action, target)))
            case Delete():
                self._delete(action, target)
                outcome.went += 1
            case SetGate():
                self._memory.took(
                    self._client.write(
                        writes.gate(action, target, now=self._client.now().strftime("%Y-%m-%dT%H:%M:%SZ"))
                    )
                )
            case SetFinalizer(present=present):
                if not present and outcome.refusals:
                    return False
                return self._finalizer(action, target, body)
            case WriteStatus(role=role):
                uid = target.uid
                if role:
                    held = known.get(Ref(API_VERSION, ROLE.kind, short_name(target.name, role)))
                    if held is None:  # made a moment ago: its event brings us back
                        outcome.again = True
                        return False
                    uid = held["metadata"]["uid"]
                self._memory.took(self._client.write(writes.status(action, target, uid=uid)))
            case Event():
                return self._event(action, target)
        return True

    def _is_free(self, ref: Ref, target: Target) -> bool:
        """Whether there is no such object. Raises ApiError where it is not a child of this deployment."""
        path = kind_of(ref.api_version, ref.kind).path(target.namespace, ref.name)
        found = self._client.read(path, kind=ref.kind)
        if found is None:
            return True
        owners = found["metadata"].get("ownerReferences") or []
        owner = next((o for o in owners if o.get("controller")), None)
        if owner is not None and owner.get("uid") == target.uid:
            return False  # the watch has not told of it yet
        if owner is None and _applied_by_us(found):
            self._must_stay(target)
            return False  # its owner was taken off by hand, or it was left behind on purpose: ours again
        if owner is None:
            whose = "nobody owns it"
        elif (owner.get("kind"), owner.get("name")) == (DEPLOYMENT.kind, target.name):
            whose = "it belongs to an earlier deployment of this name and is about to go"
        else:
            whose = f"it belongs to {owner.get('kind')} {owner.get('name')}"
        raise ApiError(
            409,
            "NotOurs",
            f"{ref.kind} {ref.name} is there already and {whose}: "
            "delete it or give the deployment another name",
        )

    def _must_stay(self, target: Target) -> None:
        """Raise _GoingError where the deployment is being deleted.

        A child that has lost its owner is then left behind, and would be collected with an owner that goes. A
        plan may be older than the deletion, but the collector takes no owner off before it.
        """
        live = self._client.read(target.path(), kind=DEPLOYMENT.kind)
        if live is None or live["metadata"]["uid"] != target.uid or live["metadata"].get("deletionTimestamp"):
            if live is not None:
                self._memory.took(live)
            raise _GoingError

    def _delete(self, action: Delete, target: Target) -> None:
        answer = self._client.write(writes.delete(action, target))
        if (answer.get("metadata") or {}).get("deletionTimestamp"):
            self._memory.took(answer)  # a finalizer of somebody's holds it
        else:
            self._memory.went(target.namespace, action.ref, action.uid)

    def _finalizer(self, action: SetFinalizer, target: Target, body: Manifest) -> bool:
        request = writes.finalizer(action, target, live=body)
        if request is None:
            return False
        self._memory.took(self._client.write(request))
        return True

    def _event(self, event: Event, target: Target) -> bool:
        """Events are news, not state: one that cannot be written is only logged."""
        request = self._recorder.request(
            event, target, clock=time.monotonic(), now=self._client.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        )
        if request is None:
            return False
        try:
            self._client.write(request)
        except ApiError as error:
            log.log(
                _level(error), "event %s on %s/%s: %s", event.reason, target.namespace, target.name, error
            )
            return False
        return True


def _refused(action: Action, target: Target, error: ApiError, outcome: Outcome) -> bool:
    """Note a refusal; whether the plan goes on."""
    if isinstance(action, Delete) and (error.missing or error.conflict):
        # It is gone, or a new object has its name: either way not ours to delete. Or it has changed since.
        outcome.again = outcome.again or bool(action.version and error.conflict)
        return True
    outcome.again = True
    if error.missing and isinstance(action, SetFinalizer | WriteStatus):
        outcome.missing = True
        return not isinstance(action, SetFinalizer)
    if isinstance(action, SetGate | WriteStatus) and (error.missing or error.conflict or _moved(error)):
        return True  # the pod or the deployment went or was made anew: the next look sees it
    ref = _ref_of(action, target)
    outcome.refusals[ref] = short(str(error))
    log.log(_level(error), "%s/%s: %s %s: %s", target.namespace, target.name, ref.kind, ref.name, error)
    return not isinstance(action, SetFinalizer)


def _level(error: ApiError) -> int:
    """Of the log. A namespace that goes refuses some thirty things at each look: that one is told is enough,
    and whoever asks for the next look tells it."""
    return logging.DEBUG if error.ending else logging.WARNING


def _applied_by_us(found: Manifest) -> bool:
    fields = found["metadata"].get("managedFields") or ()
    return any(f.get("manager") == MANAGER and f.get("operation") == "Apply" for f in fields)


def _moved(error: ApiError) -> bool:
    """The object is another than was meant, which the API server calls invalid, not a conflict.

    A JSON patch whose test failed, or an apply to an object with another uid.
    """
    if error.status != 422:
        return False
    return "metadata.uid" in error.message or ("test" in error.message and "fail" in error.message)


def _ref_of(action: Action, target: Target) -> Ref:
    match action:
        case Apply(manifest=manifest):
            return Ref.of(manifest)
        case Delete(ref=ref):
            return ref
        case SetGate(pod=pod):
            return Ref(POD.api_version, POD.kind, pod)
        case WriteStatus(role=role) if role:
            return Ref(API_VERSION, ROLE.kind, short_name(target.name, role))
    return Ref(API_VERSION, DEPLOYMENT.kind, target.name)
