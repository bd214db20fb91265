"""Readiness gates: opened by a quorum of routers, closed by one, and rollouts that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.cluster.faults.routers import Routers
from tests.cluster.faults.stack import FLAGS, Json, Stack, quiet, spec, until_quiet, written
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.operators import Operators
from tests.cluster.harness.processes import Process
from tests.cluster.harness.waiting import until

from plait_operator.names import REVISION

Make = Callable[..., Stack]
TWO = spec(router={"replicas": 2})


@pytest.fixture
def routers(plane: Cluster, namespace: str) -> Iterator[Routers]:
    routers = Routers(plane.instance, namespace)
    routers.start()
    yield routers
    routers.stop()


@pytest.fixture
def gated(routers: Routers, operators: Operators, stack: Make) -> tuple[Process, Stack]:
    """An operator, and a deployment with two routers whose engines are all taken in."""
    operator = operators.operator(*FLAGS)
    operator.start()
    return operator, stack(TWO, gated=True)


def test_a_rollout_waits_until_routers_have_taken_its_pods_in(
    gated: tuple[Process, Stack], routers: Routers
) -> None:
    operator, one = gated
    assert one.condition("Available")["status"] == "True"
    old = {r for revisions in one.revisions().values() for r in revisions}
    routers.takes_in = lambda router, engine: engine["metadata"]["labels"][REVISION] in old
    one.change(decode={"image": "sglang:v0.5.17-b"})
    until(lambda: len(one.pods("decode")) == 4, "a new pod beside the old", seconds=30)
    until_quiet(operator)
    assert not quiet(operator, 5), "it waits, and writes nothing meanwhile"
    assert one.capacity.serving() == {"prefill": 2, "decode": 3}
    routers.takes_in = lambda router, engine: True
    one.settle()
    one.keeps(prefill=2, decode=3)


@pytest.mark.full
def test_a_router_that_says_nothing_closes_no_gate(gated: tuple[Process, Stack], routers: Routers) -> None:
    operator, one = gated
    until_quiet(operator)
    start = written(operator)
    routers.silent = lambda router: True
    asked = routers.asked
    until(lambda: routers.asked > asked + 4, "they are asked", seconds=90)
    assert not (written(operator) - start)["Pod", "gate"]
    assert one.capacity.serving() == {"prefill": 2, "decode": 3}


@pytest.mark.full
def test_one_router_of_two_is_no_quorum(gated: tuple[Process, Stack], routers: Routers) -> None:
    operator, one = gated
    first = min(p["metadata"]["name"] for p in one.pods("router"))

    def one_says_no(router: Json, engine: Json) -> bool:
        return bool(router["metadata"]["name"] == first)

    routers.takes_in = one_says_no
    asked = routers.asked
    until(lambda: routers.asked > asked + 4, "they are asked", seconds=60)
    until_quiet(operator)
    assert one.capacity.serving() == {"prefill": 2, "decode": 3}, "not closed"
    one.change(decode={"replicas": 4})
    until(lambda: len(one.pods("decode")) == 4, "a new pod", seconds=30)
    until_quiet(operator)
    assert one.capacity.serving() == {"prefill": 2, "decode": 3}, "not opened either"
    routers.takes_in = lambda router, engine: True
    one.settle()
