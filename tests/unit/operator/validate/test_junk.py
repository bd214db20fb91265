"""Whatever stands at whatever place of a manifest: violations come of it, never a fault of the validator.

A fault would be told to nobody but the webhook's log, and stop the operator's work on that deployment.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from plait_operator.validate import read

FULL: dict[str, Any] = {
    "model": {
        "name": "m",
        "source": {"hub": {"repo": "a/b", "secretRef": {"name": "x", "key": "k"}}},
        "shape": {"num_hidden_layers": 3, "architectures": ["X"]},
    },
    "engine": {
        "image": "i:1",
        "args": {"log_level": "info"},
        "env": [
            {"name": "A", "value": "b"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "x", "key": "y"}}},
        ],
    },
    "prefill": {
        "resources": {"limits": {"cpu": "1", "hugepages-2Mi": "1Gi"}, "requests": {"memory": "1Gi"}},
        "podTemplate": {
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {
                "containers": [
                    {"name": "engine", "volumeMounts": [{"name": "v", "mountPath": "/x"}]},
                    {"name": "side", "image": "b"},
                ],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "nodeSelector": {"a": "b"},
                "tolerations": [{"key": "x", "operator": "Exists"}],
                "readinessGates": [{"conditionType": "a"}],
            },
        },
    },
    "transfer": {"rdma": {"resource": "rdma/hca", "devices": ["mlx5_0"]}},
    "autoscaling": {
        "decode": {
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 1}},
        },
        "prefill": {"external": True},
    },
    "router": {
        "auth": {"secretRef": {"name": "k"}},
        "service": {"annotations": {"a": "b"}},
        "podTemplate": {"spec": {"containers": [{"name": "router", "env": [{"name": "X", "value": "1"}]}]}},
    },
    "rollout": {"maxSurge": 1},
    "pods": {"imagePullSecrets": [{"name": "p"}]},
}


def places(told: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    inner = told.items() if isinstance(told, dict) else enumerate(told) if isinstance(told, list) else ()
    for step, value in inner:
        yield from places(value, (*path, step))


@pytest.mark.parametrize("junk", [None, 5, 1.5, True, "", "é\n", [5], [None], {"a": 5}], ids=repr)
def test_every_place_with(junk: object) -> None:
    found = 0
    for path in places(FULL):
        spec = copy.deepcopy(FULL)
        at: Any = spec
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = junk
        body = {
            "apiVersion": "plait.dev/v1alpha1",
            "kind": "SharedKVDeployment",
            "metadata": {"name": "a", "namespace": "n"},
            "spec": spec,
        }
        _, violations = read(body)
        assert all(one.field and one.reason and one.fix for one in violations), path
        found += bool(violations)
    assert found > 50
