"""The pod of an engine: the runtime put in beside the stock image, a preflight, then the engine."""

from __future__ import annotations

from typing import Any

from plait.contract.kv import GroupContract
from plait_operator import names
from plait_operator.children import ports, volumes
from plait_operator.children.context import Context
from plait_operator.children.engine import COMMAND, RENDEZVOUS, environment, flags
from plait_operator.children.merge import merged
from plait_operator.children.placement import gpus, placement, rdma, resources, side
from plait_operator.children.probes import grace, lifecycle, probes
from plait_operator.children.security import USER, restricted_container
from plait_operator.observed import Manifest


def contract(ctx: Context) -> GroupContract:
    """The contract. Raises ValueError while the model's shape is unknown: then there are no pods to make."""
    if ctx.contract is None:
        raise ValueError(f"{ctx.deployment.meta.name}: no pods before the model's shape is known")
    return ctx.contract


def hashes(ctx: Context, role: str) -> dict[str, str]:
    """Labels with the contract's hashes; decode has no group."""
    contract(ctx)
    wire, group = (names.hash_label(told) for told in ctx.hashes)
    told = {names.WIRE_HASH: wire}
    return {**told, names.GROUP_HASH: group} if role == "prefill" else told


def pod(ctx: Context, role: str, *, contract_map: str, worker: bool = False) -> Manifest:
    """PodTemplateSpec of an engine of `role`, the role's podTemplate merged in; without revision label.

    `contract_map`: name of the ConfigMap with the contract. `worker`: a pod of a group that spans nodes, but
    not its leader: nobody sends it requests, so it waits for no router.
    """
    spec = ctx.deployment.spec
    template = side(spec, role).pod_template
    told = merged(
        {
            "metadata": {"labels": {}},
            "spec": _spec(ctx, role, contract_map=contract_map, worker=worker),
        },
        {key: template[key] for key in ("metadata", "spec") if template.get(key) is not None},
    )
    # What selectors, routers and plans count on stands over whatever was merged in.
    told["metadata"]["labels"] |= {**names.labels(ctx.deployment.meta.name, role=role), **hashes(ctx, role)}
    return told


def _spec(ctx: Context, role: str, *, contract_map: str, worker: bool) -> Manifest:
    spec, release = ctx.deployment.spec, ctx.release
    image = side(spec, role).image or spec.engine.image
    wanted = resources(spec, role)
    mounted = volumes.of(spec, wanted, contract_map=contract_map)
    argv, env = flags(ctx, role), environment(ctx, role)
    common: Manifest = {
        "image": image,
        "imagePullPolicy": release.image_pull_policy,
        "env": env,
        "resources": wanted,
        "securityContext": _security(ctx),
        "volumeMounts": mounted.mounts,
    }
    told: dict[str, Any] = {
        # Engines ask nothing of the API server.
        "automountServiceAccountToken": False,
        # Variables of Services named `plait…` would be taken for settings of Plait's own, which it refuses.
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": grace(spec.rollout.drain_seconds),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [
            _runtime(ctx),
            {"name": "preflight", "command": _preflight(ctx, role, argv), **common},
        ],
        "containers": [
            {
                "name": "engine",
                "command": [*COMMAND, *argv],
                "ports": _ports(role, leads=not worker, spans=spec.prefill.nodes_per_group > 1),
                **common,
                **probes(),
                "lifecycle": _lifecycle(spec.rollout.drain_seconds, worker=worker),
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
        "volumes": mounted.volumes,
        **placement(spec),
    }
    if not worker:
        told["readinessGates"] = [{"conditionType": names.ADMITTED_GATE}]
    if spec.pods.host_network:
        # Ports are then the node's own: no two engine pods fit on one node.
        told |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if spec.pods.image_pull_secrets:
        told["imagePullSecrets"] = [{"name": ref.name} for ref in spec.pods.image_pull_secrets]
    if spec.pods.priority_class_name:
        told["priorityClassName"] = spec.pods.priority_class_name
    return told


def _runtime(ctx: Context) -> Manifest:
    return {
        "name": "runtime",
        "image": ctx.deployment.spec.runtime.image or ctx.release.runtime_image,
        "imagePullPolicy": ctx.release.image_pull_policy,
        "command": ["/opt/plait/inject", volumes.RUNTIME],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {**restricted_container(), "runAsNonRoot": True, "runAsUser": USER},
        "volumeMounts": [{"name": "plait", "mountPath": volumes.RUNTIME}],
    }


def _preflight(ctx: Context, role: str, argv: list[str]) -> list[str]:
    spec = ctx.deployment.spec
    told = ["python3", "-m", "plait.pod.preflight", "--contract", volumes.CONTRACT_PATH]
    told += ["--gpus", str(gpus(spec, role))]
    # The ranks of decode share nothing.
    told += ["--peer-access", spec.cache.peer_access if role == "prefill" else "off"]
    if rdma(spec):
        told += [word for device in spec.transfer.rdma.devices for word in ("--rdma-device", device)]
    told += ["--shm-bytes", str(volumes.SHM_LEAST[spec.engine.device])]
    return [*told, "--", *argv]


def _ports(role: str, *, leads: bool, spans: bool) -> list[Manifest]:
    told = [{"name": "http", "containerPort": ports.ENGINE, "protocol": "TCP"}]
    if role == "prefill" and leads:
        told.append({"name": "bootstrap", "containerPort": ports.BOOTSTRAP, "protocol": "TCP"})
        if spans:
            told.append({"name": "rendezvous", "containerPort": RENDEZVOUS, "protocol": "TCP"})
    return told


def _lifecycle(drain_seconds: int, *, worker: bool) -> Manifest:
    """A worker stays until its leader has drained: they are told to go at the same moment."""
    return lifecycle(drain_seconds, url=f"http://$LWS_LEADER_ADDRESS:{ports.ENGINE}" if worker else "")


def _security(ctx: Context) -> Manifest:
    """As tight as the stock image runs.

    Its user stays root, because the image keeps compiled kernels and their caches in root's own folders, and
    its root file system stays writable, because kernels are compiled into them at the first use. Root without
    capabilities may not read files that are readable to their owner alone: weights must be readable to all.
    IPC_LOCK: RDMA pins memory beyond the usual limit of 64 KiB; it takes effect for root only.
    """
    capabilities: Manifest = {"drop": ["ALL"]}
    if rdma(ctx.deployment.spec):
        capabilities["add"] = ["IPC_LOCK"]
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}
