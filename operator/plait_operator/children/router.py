"""The routers' Deployment."""

from __future__ import annotations

from typing import Final

from plait_operator import names
from plait_operator.children import ports
from plait_operator.children.accounts import account_name
from plait_operator.children.context import Context
from plait_operator.children.merge import merged
from plait_operator.children.meta import meta
from plait_operator.children.security import restricted_container, restricted_pod
from plait_operator.observed import Manifest

KEYS: Final = "/etc/plait/keys"
TLS: Final = "/etc/plait/tls"

# The endpoint of a pod that goes has to reach every node's proxy before the router stops taking requests.
_LEAVE_S = 5
# What the router itself needs beyond its drain (docs/router.md, "The end").
_END_S = 15


def router(ctx: Context) -> Manifest:
    """Deployment `<name>-router`. A change rolls pods one by one: a new one serves before an old one goes."""
    deployment = ctx.deployment
    name, spec = deployment.meta.name, deployment.spec
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta(deployment, names.short(name, "router"), role="router"),
        "spec": {
            "replicas": spec.router.replicas,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": 600,
            "selector": {"matchLabels": names.selector(name, role="router")},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": _template(ctx),
        },
    }


def _template(ctx: Context) -> Manifest:
    deployment = ctx.deployment
    name, spec = deployment.meta.name, deployment.spec
    secrets = _secrets(ctx)
    pod: Manifest = {
        "serviceAccountName": account_name(name),
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _LEAVE_S + spec.rollout.drain_seconds + _END_S,
        "securityContext": restricted_pod(),
        "containers": [_container(ctx, secrets)],
        "volumes": [
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            *({"name": volume, "secret": {"secretName": secret}} for volume, secret, _ in secrets),
        ],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": names.selector(name, role="router")},
                # Pods of the version that goes do not count against the one that comes.
                "matchLabelKeys": ["pod-template-hash"],
            }
            for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        ],
    }
    if spec.pods.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": ref.name} for ref in spec.pods.image_pull_secrets]
    if spec.pods.priority_class_name:
        pod["priorityClassName"] = spec.pods.priority_class_name
    wanted = spec.router.pod_template
    told = merged(
        {"metadata": {"labels": {}}, "spec": pod},
        {key: wanted[key] for key in ("metadata", "spec") if wanted.get(key) is not None},
    )
    # What selectors and policies count on stands over whatever was merged in.
    told["metadata"]["labels"] |= names.labels(name, role="router")
    return told


def _container(ctx: Context, secrets: list[tuple[str, str, str]]) -> Manifest:
    told = ctx.deployment.spec.router
    return {
        "name": "router",
        "image": told.image or ctx.release.router_image,
        "imagePullPolicy": ctx.release.image_pull_policy,
        "command": ["python3", "-m", "plait.cli", "router"],
        "args": _arguments(ctx),
        "env": [
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
            # Whoever may change a router's workers may send its prompts anywhere. So that takes a key, which
            # those have who may read the pod, and no two routers share one.
            {"name": "ADMIN_API_KEY", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        ],
        "ports": [
            {"name": "http", "containerPort": ports.ROUTER, "protocol": "TCP"},
            {"name": "admin", "containerPort": ports.ADMIN, "protocol": "TCP"},
        ],
        # The admin port speaks plain HTTP whatever clients speak, and asks for no key.
        "startupProbe": {**_probe("/health"), "periodSeconds": 2, "failureThreshold": 90},
        "livenessProbe": {**_probe("/health"), "periodSeconds": 10, "failureThreshold": 6},
        # 200 while a request would find a pair: a router that knows no engines yet gets no clients.
        "readinessProbe": {**_probe("/ready"), "periodSeconds": 2, "failureThreshold": 2},
        "lifecycle": {"preStop": {"sleep": {"seconds": _LEAVE_S}}},
        "resources": told.resources or _resources(told.processes),
        "securityContext": restricted_container(),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            *({"name": volume, "mountPath": path, "readOnly": True} for volume, _, path in secrets),
        ],
    }


def _arguments(ctx: Context) -> list[str]:
    spec = ctx.deployment.spec
    told = [
        "--kubernetes",
        f"--kubernetes-instance={ctx.deployment.meta.name}",
        f"--policy={spec.router.policy}",
        f"--decode-policy={spec.router.decode_policy}",
        f"--processes={spec.router.processes}",
        "--host=0.0.0.0",
        f"--port={ports.ROUTER}",
        f"--admin-port={ports.ADMIN}",
        f"--drain-timeout={spec.rollout.drain_seconds}",
    ]
    if spec.router.auth is not None:
        told.append(f"--api-keys={KEYS}")
    if spec.router.tls is not None:
        told += [f"--tls-certificate={TLS}/tls.crt", f"--tls-key={TLS}/tls.key"]
    return told


def _secrets(ctx: Context) -> list[tuple[str, str, str]]:
    """(volume, Secret, folder). Mounted whole, not by subPath: only so do changes reach the router."""
    told = ctx.deployment.spec.router
    found = []
    if told.auth is not None:
        found.append(("keys", told.auth.secret_ref.name, KEYS))
    if told.tls is not None:
        found.append(("tls", told.tls.secret_ref.name, TLS))
    return found


def _probe(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": "admin"}, "timeoutSeconds": 2}


def _resources(processes: int) -> Manifest:
    """For each process, the one that finds the workers included. No CPU limit: it costs latency."""
    count = processes if processes == 1 else processes + 1
    return {
        "requests": {"cpu": f"{500 * count}m", "memory": f"{256 * count}Mi"},
        "limits": {"memory": f"{1024 * count}Mi"},
    }
