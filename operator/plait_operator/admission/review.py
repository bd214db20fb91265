"""AdmissionReview in, AdmissionReview out. Pure: no clock, no network, no state.

Both webhooks refuse a bad manifest with everything that is wrong with it. The mutating one does so since the
API server checks the CRD's schema and rules between the two, and would tell those alone.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import jsonpatch

from plait.contract.violation import Violation
from plait_operator.admission.defaults import Patch, defaults
from plait_operator.api.base import GROUP
from plait_operator.validate import read, read_replicas, read_role, validate_update, warnings

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
DEPLOYMENT: Final = "SharedKVDeployment"
ROLE: Final = "SharedKVRole"
MOST_TOLD: Final = 200
"""Violations in one answer; a manifest with more has one mistake many times over."""
_MOST_VALUE = 120


class MalformedReviewError(ValueError):
    """What came is no AdmissionReview that can be answered; the text names the field."""


class Webhook(StrEnum):
    """The two webhooks."""

    MUTATE = "mutate"
    VALIDATE = "validate"


class Outcome(StrEnum):
    """How a review ended."""

    ALLOWED = "allowed"
    PATCHED = "patched"
    REFUSED = "refused"


class Answer(NamedTuple):
    """The AdmissionReview to send, and what it is for the metrics."""

    body: dict[str, Any]
    outcome: Outcome
    kind: str
    violations: tuple[Violation, ...] = ()


class _Request(NamedTuple):
    uid: str
    kind: str
    subresource: str
    operation: str
    name: str
    new: Mapping[str, Any]
    old: Mapping[str, Any] | None


def review(body: object, *, webhook: Webhook, experimental: frozenset[str] = frozenset()) -> Answer:
    """The answer to one AdmissionReview. Raises MalformedReviewError where it is none."""
    request = _request(body)
    if request.operation not in ("CREATE", "UPDATE") or request.subresource == "status":
        return _allowed(request)
    if _deleting(request.new) or (request.old is not None and _deleting(request.old)):
        return _allowed(request)  # or its finalizer could never be taken off
    if request.old is not None and request.old.get("spec") == request.new.get("spec"):
        return _allowed(request)  # labels, annotations: also of an object that an older rule let in
    if request.subresource == "scale":
        return _judged(request, read_replicas(request.new), [])
    if request.kind == ROLE:
        return _judged(request, read_role(request.new), [])
    return _deployment(request, webhook, experimental)


def refusal(body: object, text: str) -> dict[str, Any]:
    """An answer that refuses because of `text`, for a review that could not be judged."""
    uid = _mapping(_mapping(body).get("request")).get("uid")
    return _wrapped(
        {
            "uid": uid if isinstance(uid, str) else "",
            "allowed": False,
            "status": {"code": 500, "reason": "InternalError", "message": text},
        }
    )


def line(violation: Violation) -> str:
    """One violation on one line, a long value cut short."""
    told = "" if violation.value is None else f" = {_value(violation)}"
    return _one_line(f"{violation.field}{told}: {violation.reason}. Fix: {violation.fix}")


def _cause(violation: Violation) -> dict[str, str]:
    """As `details.causes` has it. kubectl shows these in place of the message, each after its field."""
    text = f"{violation.reason}. Fix: {violation.fix}"
    if violation.value is None:
        missing = violation.reason.startswith("is missing")
        reason = "FieldValueRequired" if missing else "FieldValueInvalid"
    else:
        reason, text = "FieldValueInvalid", f"Invalid value: {_value(violation)}: {text}"
    return {"reason": reason, "field": violation.field, "message": _one_line(text)}


def _value(violation: Violation) -> str:
    value = json.dumps(violation.value, default=str, ensure_ascii=False)
    return value if len(value) <= _MOST_VALUE else value[: _MOST_VALUE - 1] + "…"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _deployment(request: _Request, webhook: Webhook, experimental: frozenset[str]) -> Answer:
    patch = defaults(request.new, old=request.old) if webhook is Webhook.MUTATE else []
    body = jsonpatch.apply_patch(request.new, patch) if patch else request.new
    new, found = read(body, experimental=experimental)
    old = None if request.old is None else read(request.old, experimental=experimental)[0]
    if new is not None and old is not None:
        found = [*validate_update(old, new), *found]
    told: list[str] = []
    if new is not None and not found and webhook is Webhook.VALIDATE:
        told = warnings(new, old)
    return _judged(request, found, patch, told=told)


def _judged(
    request: _Request, found: Sequence[Violation], patch: Patch, *, told: Sequence[str] = ()
) -> Answer:
    if found:
        return _refused(request, found)
    return _allowed(request, patch=patch, told=told)


def _allowed(request: _Request, *, patch: Patch | None = None, told: Sequence[str] = ()) -> Answer:
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if told:
        response["warnings"] = list(told)
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
    return Answer(_wrapped(response), Outcome.PATCHED if patch else Outcome.ALLOWED, request.kind)


def _refused(request: _Request, found: Sequence[Violation]) -> Answer:
    shown = found[:MOST_TOLD]
    lines = [line(violation) for violation in shown]
    count = len(found)
    counted = "1 fault" if count == 1 else f"{count} faults"
    head = f"{request.kind} {request.name or '(without a name)'}: {counted}"
    if count > len(shown):
        lines.append(f"… and {count - len(shown)} more")
    status = {
        "code": 422,
        "reason": "Invalid",
        "message": "\n".join([head, *lines]),
        "details": {
            "name": request.name,
            "group": GROUP,
            "kind": request.kind,
            "causes": [_cause(violation) for violation in shown],
        },
    }
    response = {"uid": request.uid, "allowed": False, "status": status}
    return Answer(_wrapped(response), Outcome.REFUSED, request.kind, tuple(found))


def _wrapped(response: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def _request(body: object) -> _Request:
    told = _mapping(body)
    if told.get("apiVersion") != API_VERSION or told.get("kind") != KIND:
        raise MalformedReviewError(f"apiVersion, kind: send {API_VERSION} {KIND}")
    request = told.get("request")
    if not isinstance(request, Mapping):
        raise MalformedReviewError("request: is missing, or no object")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise MalformedReviewError("request.uid: must be a text")
    subresource = _text(request, "subResource")
    resource = _text(_object(request, "resource"), "resource")
    kinds = {"sharedkvdeployments": DEPLOYMENT, "sharedkvroles": ROLE}
    group = _text(_object(request, "resource"), "group")
    if group != GROUP or resource not in kinds or subresource not in ("", "scale", "status"):
        asked = f"{resource}.{group}" + (f"/{subresource}" if subresource else "")
        raise MalformedReviewError(f"request.resource: {asked} is none of {', '.join(kinds)} of {GROUP}")
    operation = _text(request, "operation")
    if operation not in ("CREATE", "UPDATE", "DELETE", "CONNECT"):
        raise MalformedReviewError(f"request.operation: {operation!r} is no operation")
    new, old = request.get("object"), request.get("oldObject")
    if operation in ("CREATE", "UPDATE") and not isinstance(new, Mapping):
        raise MalformedReviewError("request.object: is missing, or no object")
    if operation == "UPDATE" and not isinstance(old, Mapping):
        raise MalformedReviewError("request.oldObject: is missing, or no object")
    name = _text(request, "name") or str(_mapping(_mapping(new).get("metadata")).get("name") or "")
    return _Request(
        uid=uid,
        kind=kinds[resource],
        subresource=subresource,
        operation=operation,
        name=name,
        new=_mapping(new),
        old=old if isinstance(old, Mapping) else None,
    )


def _object(request: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = request.get(name)
    if not isinstance(value, Mapping):
        raise MalformedReviewError(f"request.{name}: is missing, or no object")
    return value


def _text(told: Mapping[str, Any], name: str) -> str:
    value = told.get(name)
    if value is not None and not isinstance(value, str):
        raise MalformedReviewError(f"request: {name} must be a text")
    return value or ""


def _deleting(body: Mapping[str, Any]) -> bool:
    return bool(_mapping(body.get("metadata")).get("deletionTimestamp"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
