"""Deployments whose engine manifests a real API server must take, each with both roles' workloads."""

from __future__ import annotations

from typing import Any

from tests.cluster.harness.api import Manifest

from plait_operator.api.resource import SharedKVDeployment
from plait_operator.capacity import context_length_of, contract_of, shape_of
from plait_operator.children.context import Context, Release
from plait_operator.children.revision import contract_map
from plait_operator.children.workload import workload

GLM: Manifest = {
    "model": {
        "name": "GLM-5",
        "family": "glm-5",
        "source": {"pvc": {"claimName": "models", "path": "zai-org/GLM-5"}},
    },
    "engine": {"image": "lmsysorg/sglang:v0.5.17"},
}
DEEPSEEK: Manifest = {
    "model": {
        "name": "DeepSeek-V3.2",
        "family": "deepseek-v3.2",
        "revision": "main",
        "source": {"hub": {"repo": "deepseek-ai/DeepSeek-V3.2", "secretRef": {"name": "hub"}}},
    },
    "engine": {"image": "lmsysorg/sglang:v0.5.17"},
}
LAPTOP: Manifest = {
    "model": {"name": "tiny", "family": "glm-5", "source": {"hostPath": {"path": "/models/tiny"}}},
    "engine": {"image": "sglang-cpu:0.5.17", "device": "cpu"},
    "transfer": {"backend": "mooncake_tcp"},
    "prefill": {"contextParallel": 2, "chunk": 256, "maxTotalTokens": 8192},
}
RDMA: Manifest = {"transfer": {"rdma": {"resource": "rdma/hca", "count": 8, "devices": ["mlx5_0", "mlx5_1"]}}}
LARGE: Manifest = {"requests": {"cpu": "64", "memory": "1Ti"}, "limits": {"memory": "1Ti"}}

CASES: dict[str, Manifest] = {
    "GLM-5 on 8 x H200 with RDMA": {**GLM, **RDMA, "prefill": {"resources": LARGE}},
    "DeepSeek-V3.2 from a hub": DEEPSEEK,
    "a laptop without GPUs": LAPTOP,
    "huge pages": {
        **GLM,
        "prefill": {"resources": {"limits": {"hugepages-2Mi": "4Gi", "memory": "64Gi", "cpu": "8"}}},
    },
    "the node's network": {**GLM, "pods": {"hostNetwork": True}},
    "secrets and priority": {
        **GLM,
        "pods": {"imagePullSecrets": [{"name": "a"}, {"name": "b"}], "priorityClassName": "high"},
    },
    "a pod template": {
        **GLM,
        "decode": {
            "podTemplate": {
                "metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}},
                "spec": {
                    "nodeSelector": {"pool": "x"},
                    "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
                    "schedulerName": "gang-scheduler",
                    "volumes": [{"name": "extra", "emptyDir": {}}],
                    "initContainers": [{"name": "first", "image": "busybox"}],
                    "containers": [
                        {"name": "engine", "volumeMounts": [{"name": "extra", "mountPath": "/extra"}]},
                        {"name": "side", "image": "busybox"},
                    ],
                },
            }
        },
    },
    "groups over two nodes": {**GLM, **RDMA, "prefill": {"nodesPerGroup": 2}},
}


def context(spec: Manifest, *, namespace: str, name: str = "glm") -> Context:
    """The context of a deployment with `spec`."""
    metadata = {"name": name, "namespace": namespace, "uid": "0b9c57c6-0000-4000-8000-000000000000"}
    deployment = SharedKVDeployment.of({"metadata": metadata, "spec": spec})
    shape = shape_of(deployment.spec, None)
    assert shape is not None
    return Context(
        deployment=deployment,
        release=Release(),
        shape=shape,
        contract=contract_of(deployment.spec, shape),
        context_length=context_length_of(deployment.spec, shape),
    )


def engines(ctx: Context, *, replicas: int = 1) -> list[Manifest]:
    """What runs the engines of both roles, without its owner: there is none here to be found."""
    found = [
        made
        for role in ("prefill", "decode")
        for made in (contract_map(ctx, role), workload(ctx, role, replicas=replicas))
    ]
    for made in found:
        del made["metadata"]["ownerReferences"]
    return found


def pods(manifest: Manifest) -> list[Any]:
    """The pod templates of a workload."""
    spec = manifest["spec"]
    group = spec.get("leaderWorkerTemplate", {})
    return [t for t in (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate")) if t]
