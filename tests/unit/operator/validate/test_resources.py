from typing import Any

import pytest
from tests.cluster.admission.matrix import manifest

from plait_operator.validate import read


def told(role: str, resources: dict[str, Any], *, cpu: bool = False, **change: Any) -> list[str]:
    changes = {f"spec/{role}/resources": resources, **{k.replace("__", "/"): v for k, v in change.items()}}
    found = read(manifest(changes, cpu=cpu), experimental=frozenset({"multi-host-groups"}))[1]
    return [v.field.removeprefix(f"spec.{role}.resources.") for v in found]


@pytest.mark.parametrize(
    ("role", "resources", "fields"),
    [
        ("prefill", {"limits": {"nvidia.com/gpu": 8}}, []),
        ("prefill", {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": 8}}, []),
        ("prefill", {"limits": {"nvidia.com/gpu": 0}}, ["limits.nvidia.com/gpu"]),
        ("decode", {"limits": {"nvidia.com/gpu": 8}}, ["limits.nvidia.com/gpu"]),
        ("router", {"limits": {"nvidia.com/gpu": 1}}, ["limits.nvidia.com/gpu"]),
        ("prefill", {"limits": {"rdma/hca": 2}}, ["limits.rdma/hca"]),
        ("router", {"limits": {"rdma/hca": 2}}, []),
        ("prefill", {"requests": {"nvidia.com/gpu": 8}}, ["requests.nvidia.com/gpu"]),
        ("prefill", {"limits": {"a.example/x": 2}, "requests": {"a.example/x": 1}}, ["requests.a.example/x"]),
        ("prefill", {"limits": {"a.example/x": 1.5}}, ["limits.a.example/x"]),
        ("prefill", {"limits": {"A.example/x": 1}}, ["limits.A.example/x"]),
        ("prefill", {"limits": {"hugepages-2Mi": "64Mi"}}, []),
        ("prefill", {"limits": {"hugepages-2Mi": "3Mi"}}, ["limits.hugepages-2Mi"]),
        ("prefill", {"limits": {"hugepages-x": "64Mi"}}, ["limits.hugepages-x"]),
        ("prefill", {"requests": {"hugepages-2Mi": "64Mi"}}, ["requests.hugepages-2Mi"]),
        ("router", {"requests": {"memory": "2Gi"}, "limits": {"memory": "1G"}}, ["requests.memory"]),
        ("router", {"requests": {"cpu": "1000m"}, "limits": {"cpu": 1}}, []),
        ("router", {"claims": [{"name": "a"}]}, ["claims"]),
        ("router", {"limits": {"cpus": 1}}, ["limits.cpus"]),
        ("router", {"limits": {"cpu": -1}}, ["limits.cpu"]),
    ],
)
def test_quantities(role: str, resources: dict[str, Any], fields: list[str]) -> None:
    assert told(role, resources) == fields


def test_gpus_of_a_group_over_two_nodes_are_those_of_one_pod() -> None:
    assert told("prefill", {"limits": {"nvidia.com/gpu": 4}}, spec__prefill__nodesPerGroup=2) == []
    assert told("prefill", {"limits": {"nvidia.com/gpu": 8}}, spec__prefill__nodesPerGroup=2) != []


def test_a_cpu_has_no_gpus() -> None:
    assert told("prefill", {"limits": {"nvidia.com/gpu": 0}}, cpu=True) == []
    assert told("prefill", {"limits": {"nvidia.com/gpu": 2}}, cpu=True) == ["limits.nvidia.com/gpu"]
