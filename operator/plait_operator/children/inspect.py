"""The Job that reads a model's config.json where its shape is not given, and the ConfigMap that keeps it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from plait_operator import names
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.children import volumes
from plait_operator.children.context import Release
from plait_operator.children.merge import merged, merged_env
from plait_operator.children.meta import meta
from plait_operator.children.placement import placement
from plait_operator.children.security import restricted_container, restricted_pod
from plait_operator.observed import Manifest

INSPECT: Final = "inspect"
"""Role of the Job's pods: nobody routes to it, and network policies pick by it."""
SOURCE: Final = "plait.dev/model-source"
"""Annotation of Job and ConfigMap: `source_digest` of what was read."""
CONFIG: Final = "config.json"
"""Key of the ConfigMap."""
CONTENT: Final = "plait.dev/model-config"
"""Annotation of the ConfigMap: `content_digest` of what stands under CONFIG."""

# The engine's image may have to be pulled first, and it is large.
_DEADLINE_S = 3600
_READ_S = 120


def source_digest(spec: SharedKVDeploymentSpec) -> str:
    """Hex SHA-256 over where the model comes from and its revision: another one means to inspect again.

    The hub's token is left out: with another token it is still the same model.
    """
    source = spec.model.source.model_dump(mode="json", exclude_none=True, exclude={"hub": {"secret_ref"}})
    told = json.dumps([source, spec.model.revision], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(told.encode()).hexdigest()


def content_digest(text: str) -> str:
    """16 hex digits of the ConfigMap's text: edited by hand, it says no more what was read."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def inspected_map(deployment: SharedKVDeployment, config: Mapping[str, Any]) -> Manifest:
    """ConfigMap `<name>-model` with the fields of config.json that a ModelShape needs, as JSON."""
    text = json.dumps(dict(config), sort_keys=True, separators=(",", ":"))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta(
            deployment,
            names.short(deployment.meta.name, "model"),
            annotations={SOURCE: source_digest(deployment.spec), CONTENT: content_digest(text)},
        ),
        "data": {CONFIG: text},
    }


def inspect_job(deployment: SharedKVDeployment, release: Release) -> Manifest:
    """The Job; its name ends in 8 digits of `source_digest`, for a Job's template cannot be changed.

    Its pods have role INSPECT and the same 8 digits as their revision. The answer is the termination message
    of container `inspect`: a `plait.contract.verdict.Inspected`, also of a run that failed.
    """
    spec, digest = deployment.spec, source_digest(deployment.spec)
    labels = names.labels(deployment.meta.name, role=INSPECT) | {names.REVISION: digest[:8]}
    metadata = meta(
        deployment,
        names.short(deployment.meta.name, INSPECT, digest[:8]),
        role=INSPECT,
        annotations={SOURCE: digest},
    )
    metadata["labels"] = labels
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            # Whoever planned this Job tries again, later each time; the Job itself only rides over a blip.
            "backoffLimit": 1,
            "activeDeadlineSeconds": _DEADLINE_S,
            "ttlSecondsAfterFinished": 3600,
            "template": {"metadata": {"labels": labels}, "spec": _pod(spec, release)},
        },
    }


def _pod(spec: SharedKVDeploymentSpec, release: Release) -> Manifest:
    mounted = _model(spec)
    pod: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        # Variables of Services named `plait…` would be taken for settings of Plait's own.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": restricted_pod(),
        "initContainers": [_runtime(spec, release)],
        "containers": [_inspect(spec, release, mounts=[mount for _, mount in mounted])],
        "volumes": [
            {"name": "plait", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            *(volume for volume, _ in mounted),
        ],
        **_placement(spec),
    }
    if spec.pods.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": ref.name} for ref in spec.pods.image_pull_secrets]
    if spec.pods.priority_class_name:
        pod["priorityClassName"] = spec.pods.priority_class_name
    return pod


def _runtime(spec: SharedKVDeploymentSpec, release: Release) -> Manifest:
    return {
        "name": "runtime",
        "image": spec.runtime.image or release.runtime_image,
        "imagePullPolicy": release.image_pull_policy,
        "command": ["/opt/plait/inject", volumes.RUNTIME],
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"memory": "256Mi"},
        },
        "securityContext": restricted_container(),
        "volumeMounts": [{"name": "plait", "mountPath": volumes.RUNTIME}],
    }


def _inspect(spec: SharedKVDeploymentSpec, release: Release, *, mounts: list[Manifest]) -> Manifest:
    model = volumes.model_path(spec.model.source)
    command = ["python3", "-m", "plait.pod.inspect", "--model", model, "--deadline-s", str(_READ_S)]
    if spec.model.source.hub is not None and spec.model.revision:
        command += ["--revision", spec.model.revision]
    return {
        "name": INSPECT,
        # Prefill's image: its transformers will read the same file.
        "image": spec.prefill.image or spec.engine.image,
        "imagePullPolicy": release.image_pull_policy,
        "command": command,
        "env": _environment(spec),
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": restricted_container(),
        "volumeMounts": [
            {"name": "plait", "mountPath": volumes.RUNTIME, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *mounts,
        ],
    }


def _environment(spec: SharedKVDeploymentSpec) -> list[Manifest]:
    """The engines' own environment (a mirror of the hub, a proxy), and what this container needs over it."""
    told: list[Manifest] = [
        {"name": "PYTHONPATH", "value": f"{volumes.RUNTIME}/site"},
        {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
        {"name": "HOME", "value": "/tmp"},
        {"name": "HF_HOME", "value": "/tmp/hf"},
    ]
    hub = spec.model.source.hub
    if hub is not None and hub.secret_ref is not None:
        reference = {"name": hub.secret_ref.name, "key": hub.secret_ref.key}
        told.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return merged_env(spec.engine.env, told)


def _model(spec: SharedKVDeploymentSpec) -> list[tuple[Manifest, Manifest]]:
    """The model's volume and its mount; a hub needs none for one small file."""
    return [] if spec.model.source.hub is not None else [volumes.model(spec.model.source)]


def _placement(spec: SharedKVDeploymentSpec) -> Manifest:
    """Where the prefill pods may be, GPUs aside: the weights are there, and so is the engine's image."""
    fields = ("nodeSelector", "tolerations", "affinity", "runtimeClassName", "schedulerName")
    wanted = spec.prefill.pod_template.get("spec") or {}
    return merged(placement(spec), {name: wanted[name] for name in fields if wanted.get(name)})
