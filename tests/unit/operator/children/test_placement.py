"""GPUs, devices and nodes of engine pods."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.children.given import deployment

from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.children.placement import gpus, placement, rdma, resources, side

CPU = {"engine": {"image": "i", "device": "cpu"}}


def spec(**told: Any) -> SharedKVDeploymentSpec:
    return deployment(**told).spec


@pytest.mark.parametrize(
    ("told", "prefill", "decode"),
    [
        ({}, 8, 1),
        ({"prefill": {"contextParallel": 4}}, 4, 1),
        ({"prefill": {"contextParallel": 8, "nodesPerGroup": 2}}, 4, 1),
        ({"prefill": {"contextParallel": 8, "nodesPerGroup": 8}}, 1, 1),
        ({"decode": {"dataParallel": 8}}, 8, 8),
        (CPU, 0, 0),
    ],
)
def test_gpus_of_a_pod(told: dict[str, Any], prefill: int, decode: int) -> None:
    assert (gpus(spec(**told), "prefill"), gpus(spec(**told), "decode")) == (prefill, decode)


@pytest.mark.parametrize(
    ("told", "uses"),
    [({}, True), ({"transfer": {"backend": "mooncake_tcp"}}, False), (CPU, False)],
)
def test_pages_travel_by_rdma_with_mooncake_on_gpus(told: dict[str, Any], uses: bool) -> None:
    assert rdma(spec(**told)) is uses


def test_devices_are_limits_over_the_users_own() -> None:
    mine = {"requests": {"cpu": "8"}, "limits": {"memory": "1Gi", "nvidia.com/gpu": 8}}
    told = spec(prefill={"resources": mine}, transfer={"rdma": {"resource": "rdma/a", "count": 4}})
    assert resources(told, "prefill") == {
        "requests": {"cpu": "8"},
        "limits": {"memory": "1Gi", "nvidia.com/gpu": "8", "rdma/a": "4"},
    }
    assert told.prefill.resources == mine
    assert resources(told, "decode") == {"limits": {"nvidia.com/gpu": "1", "rdma/a": "4"}}


def test_a_device_that_no_backend_uses_is_not_asked_for() -> None:
    told = spec(transfer={"backend": "mooncake_tcp", "rdma": {"resource": "rdma/a"}})
    assert "rdma/a" not in resources(told, "decode")["limits"]


def test_cpu_pods_go_anywhere() -> None:
    assert placement(spec(**CPU)) == {}
    assert resources(spec(**CPU), "prefill") == {}


def test_there_are_two_sides() -> None:
    told = spec()
    assert side(told, "prefill") is told.prefill
    assert side(told, "decode") is told.decode
    with pytest.raises(ValueError, match="role='router': engines are prefill or decode"):
        side(told, "router")
