"""Deployments and an operator for the fault table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.cluster.faults.stack import FLAGS, Json, Stack
from tests.cluster.harness.api import Api
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.fake_nodes import TAINT, FakeNodes
from tests.cluster.harness.operators import Operators
from tests.cluster.harness.processes import Process

NODES = [f"fault-{number}" for number in range(10)]
CPU_NODE = "fault-cpu"


@pytest.fixture(scope="session")
def room(kwok: FakeNodes, api: Api) -> FakeNodes:
    """GPU nodes with room for a rollout, and one node for what asks for no GPU."""
    kwok.add(api, *NODES)
    kwok.add(api, CPU_NODE, gpus=0)
    return kwok


@pytest.fixture(autouse=True)
def open_to_all(room: FakeNodes, api: Api) -> Iterator[None]:
    """The node without GPUs takes any pod during a test of this folder, and none of another's."""
    api.patch("v1", "Node", CPU_NODE, "", {"spec": {"taints": None}})
    yield
    api.patch("v1", "Node", CPU_NODE, "", {"spec": {"taints": [TAINT]}})


@pytest.fixture
def operator(operators: Operators, room: FakeNodes) -> Process:
    """An operator of this test's namespace, ready."""
    process = operators.operator(*FLAGS)
    process.start()
    return process


@pytest.fixture
def stack(plane: Cluster, crds: list[str], namespace: str, room: FakeNodes) -> Iterator[Callable[..., Stack]]:
    """Makes deployments in this test's namespace, and waits for them."""
    made: list[Stack] = []

    def make(wanted: Json, name: str = "demo", *, gated: bool = False, settled: bool = True) -> Stack:
        one = Stack(plane, namespace, name, gated=gated)
        made.append(one)
        one.create(wanted)
        if settled:
            one.settle()
            one.capacity.arm()
        return one

    yield make
    for one in made:
        one.capacity.stop()
