"""Changes to a sound manifest, and the field that the API server alone must refuse."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from plait_operator.api.base import API_VERSION

SOUND: dict[str, Any] = {
    "model": {
        "name": "glm-5",
        "family": "glm-5",
        "contextLength": 131072,
        "source": {"hub": {"repo": "zai-org/GLM-5"}},
    },
    "engine": {"image": "sglang:0.5.17"},
}
REMOVED = object()
_HUB = {"repo": "zai-org/GLM-5"}
_HPA = {"minReplicas": 1, "maxReplicas": 4, "metrics": [{"type": "Resource"}]}


class Bad(NamedTuple):
    """`change`: path of the spec -> value. `field`: the refusal's, without `spec.` in front."""

    field: str
    change: dict[str, Any]


BAD: tuple[Bad, ...] = (
    Bad("model", {"model": REMOVED}),
    Bad("model.name", {"model.name": REMOVED}),
    Bad("model.name", {"model.name": ""}),
    Bad("model.name", {"model.name": "x" * 254}),
    Bad("model.name", {"model.name": "--port"}),
    Bad("model.revision", {"model.source": {"hostPath": {"path": "/m"}}, "model.revision": "main"}),
    Bad("model.contextLength", {"model.contextLength": 0}),
    Bad("model.contextLength", {"model.contextLength": "8k"}),
    Bad("model.shape", {"model.shape": {"hidden_size": 64}}),
    Bad("model.family", {"model.family": "glm-4"}),
    Bad("model.source", {"model.source": {}}),
    Bad("model.source", {"model.source.hostPath": {"path": "/models"}}),
    Bad(
        "model.source", {"model.source": {"pvc": {"claimName": "a"}, "hostPath": {"path": "/m"}, "hub": _HUB}}
    ),
    Bad("model.source.pvc.claimName", {"model.source": {"pvc": {"claimName": "No_Claim"}}}),
    Bad("model.source.pvc.claimName", {"model.source": {"pvc": {"claimName": "a..b"}}}),
    Bad("model.source.pvc.claimName", {"model.source": {"pvc": {}}}),
    Bad("model.source.pvc.path", {"model.source": {"pvc": {"claimName": "a", "path": "/abs"}}}),
    Bad("model.source.pvc.path", {"model.source": {"pvc": {"claimName": "a", "path": "a/../../b"}}}),
    Bad("model.source.hostPath.path", {"model.source": {"hostPath": {"path": "models"}}}),
    Bad("model.source.hostPath.path", {"model.source": {"hostPath": {"path": "/models/../etc"}}}),
    Bad("model.source.hub.repo", {"model.source.hub.repo": "GLM-5"}),
    Bad("model.source.hub.repo", {"model.source.hub.repo": "zai-org/GLM-5/main"}),
    Bad("model.source.hub.repo", {"model.source.hub.repo": "https://hub/zai-org/GLM-5"}),
    Bad("model.source.hub.secretRef.name", {"model.source.hub.secretRef": {"name": ""}}),
    Bad("model.source.hub.secretRef.name", {"model.source.hub.secretRef": {"name": "Hub Token"}}),
    Bad("engine.image", {"engine.image": REMOVED}),
    Bad("engine.image", {"engine.image": ""}),
    Bad("engine.device", {"engine.device": "rocm"}),
    Bad("engine.version", {"engine.version": "0.4.0"}),
    Bad("engine.env[1]", {"engine.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}),
    Bad("engine.env[0].name", {"engine.env": [{"value": "1"}]}),
    Bad("cache.layout", {"cache.layout": "plain"}),
    Bad("cache.split", {"cache.split": "round-robin"}),
    Bad("cache.pageSize", {"cache.pageSize": 32}),
    Bad("cache.dtype", {"cache.dtype": "fp8_e5m2"}),
    Bad("cache.scratchTokens", {"cache.scratchTokens": 131073}),
    Bad("cache.scratchTokens", {"cache.scratchTokens": 65536}),
    Bad("cache.scratchTokens", {"cache.scratchTokens": -64}),
    Bad("cache.peerAccess", {"cache.peerAccess": "maybe"}),
    Bad("cache.peerAccess", {"cache.peerAccess": "required", "engine.device": "cpu"}),
    Bad("cache.hostTier.enabled", {"cache.hostTier.enabled": True}),
    Bad("prefill.replicas", {"prefill.replicas": -1}),
    Bad("prefill.contextParallel", {"prefill.contextParallel": 1}),
    Bad("prefill.contextParallel", {"prefill.contextParallel": 3}),
    Bad("prefill.contextParallel", {"prefill.contextParallel": 16}),
    Bad("prefill.chunk", {"prefill.chunk": 100}),
    Bad("prefill.maxTotalTokens", {"prefill.maxTotalTokens": 1000}),
    Bad("prefill.maxTotalTokens", {"prefill.maxTotalTokens": 256, "prefill.contextParallel": 8}),
    Bad("prefill.maxTotalTokens", {"prefill.maxTotalTokens": 65536}),
    Bad("prefill.nodesPerGroup", {"prefill.nodesPerGroup": 3}),
    Bad("decode.dataParallel", {"decode.dataParallel": 0}),
    Bad("transfer.backend", {"transfer.backend": "nixl"}),
    Bad("transfer.rdma", {"transfer": {"backend": "mooncake_tcp", "rdma": {"devices": ["mlx5_0"]}}}),
    Bad("transfer.rdma", {"transfer": {"backend": "mooncake_tcp", "rdma": {"resource": "rdma/hca"}}}),
    Bad("transfer.backend", {"engine.device": "cpu"}),
    Bad("transfer.rdma.resource", {"transfer.rdma": {"resource": "hca"}}),
    Bad("transfer.rdma.devices[1]", {"transfer.rdma": {"devices": ["mlx5_0", "mlx5_0"]}}),
    Bad("router.policy", {"router.policy": "cache-aware"}),
    Bad("router.decodePolicy", {"router.decodePolicy": "sticky"}),
    Bad("router.service.type", {"router.service.type": "ExternalName"}),
    Bad("router.service.port", {"router.service.port": 70000}),
    Bad("router.tls.secretRef", {"router.tls": {}}),
    Bad("router.tls.secretRef.name", {"router.tls": {"secretRef": {"name": "Keys!"}}}),
    Bad("router.auth.secretRef.name", {"router.auth": {"secretRef": {"name": "Keys!"}}}),
    Bad("rollout.maxSurge", {"rollout": {"maxSurge": 0, "maxUnavailable": 0}}),
    Bad("rollout.drainSeconds", {"rollout.drainSeconds": -1}),
    Bad("autoscaling.prefill.minReplicas", {"autoscaling.prefill": {**_HPA, "minReplicas": 5}}),
    Bad("autoscaling.prefill.metrics", {"autoscaling.prefill": {"maxReplicas": 2}}),
    Bad("autoscaling.decode.minReplicas", {"autoscaling.decode": {**_HPA, "minReplicas": 5}}),
    Bad("autoscaling.decode.metrics", {"autoscaling.decode": {**_HPA, "external": True}}),
    Bad(
        "autoscaling.decode.behavior", {"autoscaling.decode": {"external": True, "behavior": {"scaleUp": {}}}}
    ),
    Bad("autoscaling.prefill.behavior", {"autoscaling.prefill": {"external": True, "behavior": {"a": 1}}}),
    Bad("pods.imagePullSecrets[1].name", {"pods.imagePullSecrets": [{"name": "ok"}, {"name": "Not OK"}]}),
    Bad("pods.priorityClassName", {"pods.priorityClassName": "High"}),
    Bad("autoscaling.decode.metrics", {"autoscaling.decode": {"maxReplicas": 2, "metrics": []}}),
)
GOOD: tuple[dict[str, Any], ...] = (
    {},
    {"model.family": REMOVED},
    {"model.family": REMOVED, "model.shape": {"hidden_size": 64, "rope_scaling": {"type": "yarn"}}},
    {"model.family": "deepseek-v3.2"},
    {"model.source": {"pvc": {"claimName": "models.big", "path": "glm/5"}}},
    {"model.source": {"hostPath": {"path": "/models/GLM-5"}}},
    {"model.source.hub.secretRef": {"name": "hub"}, "model.revision": "main"},
    {"cache": {"layout": "replicated", "split": "page-zigzag", "dtype": "bfloat16", "peerAccess": "off"}},
    {"cache.scratchTokens": 131072},
    {"engine.device": "cpu", "transfer.backend": "mooncake_tcp", "prefill.contextParallel": 2},
    {"prefill": {"contextParallel": 4, "maxTotalTokens": 131072, "chunk": 64, "nodesPerGroup": 2}},
    {"prefill.replicas": 0, "decode.replicas": 0, "router.replicas": 0},
    {"transfer.rdma": {"resource": "rdma/hca", "count": 8, "devices": ["mlx5_0", "mlx5_1"]}},
    {"rollout": {"maxSurge": 0, "maxUnavailable": 1, "drainSeconds": 0}},
    {"autoscaling": {"prefill": _HPA, "decode": {"external": True}}},
    {
        "engine.env": [
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
        ]
    },
    {"prefill.podTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"tolerations": [{"key": "x"}]}}},
    {"prefill.args": {"max_running_requests": 8, "log-requests": True}, "engine.args": {"dtype": "bfloat16"}},
    {"router.service": {"type": "LoadBalancer", "port": 443, "annotations": {"a/b": "c"}}},
    {"pods.imagePullSecrets": [{"name": "one"}, {"name": "two"}]},
)


def manifest(change: dict[str, Any], *, name: str = "demo", namespace: str = "") -> dict[str, Any]:
    """The sound manifest with a change."""
    spec = copy.deepcopy(SOUND)
    for path, value in change.items():
        *sections, last = path.split(".")
        where = spec
        for section in sections:
            where = where.setdefault(section, {})
        if value is REMOVED:
            where.pop(last, None)
        else:
            where[last] = copy.deepcopy(value)
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": API_VERSION, "kind": "SharedKVDeployment", "metadata": metadata, "spec": spec}
