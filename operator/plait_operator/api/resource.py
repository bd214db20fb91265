"""The custom resources themselves, as they come from the API server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plait_operator.api.spec import SharedKVDeploymentSpec, SharedKVRoleSpec
from plait_operator.api.status import SharedKVDeploymentStatus


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What is needed of an object's metadata. `deleting`: it has a deletion timestamp, `deleted_at`."""

    name: str
    namespace: str
    uid: str = ""
    generation: int = 0
    deleting: bool = False
    deleted_at: str = ""
    finalizers: tuple[str, ...] = ()
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Meta:
        """From an object's JSON."""
        told: Mapping[str, Any] = body.get("metadata") or {}
        return cls(
            name=told.get("name", ""),
            namespace=told.get("namespace", ""),
            uid=told.get("uid", ""),
            generation=told.get("generation", 0),
            deleting=bool(told.get("deletionTimestamp")),
            deleted_at=told.get("deletionTimestamp") or "",
            finalizers=tuple(told.get("finalizers") or ()),
            labels=told.get("labels") or {},
            annotations=told.get("annotations") or {},
        )


@dataclass(frozen=True, kw_only=True)
class SharedKVDeployment:
    """One SharedKVDeployment. `status_raw`: the status as stored, to tell whether it must be written."""

    meta: Meta
    spec: SharedKVDeploymentSpec
    status: SharedKVDeploymentStatus
    status_raw: Mapping[str, Any]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> SharedKVDeployment:
        """From its JSON. Raises pydantic.ValidationError when the spec is not one of this version."""
        return cls(
            meta=Meta.of(body),
            spec=SharedKVDeploymentSpec.model_validate(body.get("spec") or {}),
            status=SharedKVDeploymentStatus.model_validate(body.get("status") or {}),
            status_raw=body.get("status") or {},
        )


@dataclass(frozen=True, kw_only=True)
class SharedKVRole:
    """One SharedKVRole: how many replicas an autoscaler wants of a role."""

    meta: Meta
    spec: SharedKVRoleSpec
