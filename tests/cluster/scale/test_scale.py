"""Many deployments: how long a burst takes, how soon a change is answered, and what memory it costs.

The limits are the operator's; the machine under it runs the whole cluster as well. `PLAIT_SCALE`: how many
deployments the long ones have. `PLAIT_SOAK_MINUTES`: of the long churn (default 30),
which begins once all are there, or as many as came within `PLAIT_GROW_MINUTES` (default 60).
What was measured is printed, and written to the file that `PLAIT_FIGURES` names.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cluster.conftest import release_finalizers
from tests.cluster.harness.api import PLAIT, Api, RefusedError
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.fake_nodes import FakeNodes
from tests.cluster.harness.operators import Operators
from tests.cluster.harness.processes import Process
from tests.cluster.harness.waiting import until
from tests.cluster.scale import report
from tests.cluster.scale.figures import Figures
from tests.cluster.scale.fleet import PODS_OF_EACH, Fleet
from tests.cluster.scale.measure import Measure
from tests.cluster.scale.outside import Outside
from tests.cluster.scale.routers import answering

SMALL = 20
BURST = 200
"""What two cores bring up within a few minutes."""
MOST = 1000
WAVE = 50
RATE = 5.0
"""Edits a second."""
P95_S = 1.0
MEMORY_MIB = 300
GROWTH_MIB = 1.0
FLAGS = ("--rate=300",)
"""The stock 100 requests a second would make the burst wait for the operator's own limit."""

Start = Callable[[int], Measure]


@pytest.fixture
def routers(plane: Cluster) -> Iterator[int]:
    """The process that answers for every router."""
    with answering(plane.instance) as process:
        yield process.pid


@pytest.fixture
def operator(operators: Operators) -> Process:
    return operators.operator(*FLAGS, everywhere=True)


@pytest.fixture
def start(plane: Cluster, kwok: FakeNodes, operator: Process, routers: int) -> Iterator[Start]:
    """An operator at work, nodes for so many deployments, and none of these yet."""
    outside = Outside(plane.instance)
    fleets: list[Fleet] = []

    def begin(count: int) -> Measure:
        fleet = Fleet(plane, count)
        fleets.append(fleet)
        fleet.room()
        _clear(plane.api)
        operator.start()
        outside.start()
        return Measure(plane, fleet, operator, outside, routers=routers)

    yield begin
    outside.stop()
    operator.kill()
    for fleet in fleets:
        # A large one is the last in its cluster, which ends with it (see conftest.py).
        if fleet.most <= SMALL:
            fleet.remove(seconds=120)


def _clear(api: Api) -> None:
    """Delete what other suites have left in namespaces that go, which may take minutes: this operator would
    take it for its own, and drain it.
    """
    for one in api.list(PLAIT, "SharedKVDeployment"):
        namespace, name = one["metadata"]["namespace"], one["metadata"]["name"]
        # One whose namespace is gone can be deleted, and not be patched.
        with contextlib.suppress(RefusedError):
            release_finalizers(api, namespace)
        with contextlib.suppress(RefusedError):
            api.delete(PLAIT, "SharedKVDeployment", name, namespace)
    until(
        lambda: not _others(api),
        "others' deployments are gone",
        seconds=60,
        why_not=lambda: str(_others(api)),
    )


def _others(api: Api) -> list[str]:
    """Deployments in namespaces that are no fleet's."""
    return [
        f"{meta['namespace']}/{meta['name']} {meta.get('deletionTimestamp')} {meta.get('finalizers')}"
        for meta in (one["metadata"] for one in api.list(PLAIT, "SharedKVDeployment"))
        if not meta["namespace"].startswith("fleet")
    ]


def wanted(usual: int) -> int:
    return int(os.environ.get("PLAIT_SCALE") or usual)


def command(target: str) -> str:
    """How to measure again."""
    told = [
        f"{name}={os.environ[name]}"
        for name in ("PLAIT_SCALE", "PLAIT_GROW_MINUTES", "PLAIT_SOAK_MINUTES")
        if name in os.environ
    ]
    return " ".join([*told, "PLAIT_FIGURES=docs/figures/operator_scale.json", "make", target])


def check(churn: dict[str, Any], *, minutes: float) -> None:
    """The limits."""
    assert churn["edits"] >= 0.95 * minutes * 60 * RATE, "this machine cannot make the edits"
    assert churn["inside_s"]["p95"] <= P95_S
    assert churn["unanswered_after_10_s"] == 0
    assert churn["faults"] == 0
    assert max(churn["mib_by_minute"]) <= MEMORY_MIB
    assert churn["processes"]["operator"]["most_mib"] <= MEMORY_MIB


def test_a_small_fleet_follows_edits_with_and_without_routers_that_answer(
    start: Start, operator: Process, routers: int, api: Api
) -> None:
    """No limit in seconds: what else runs on a small machine would decide. Large fleets have them."""
    measure = start(SMALL)
    filled = measure.burst()
    assert filled["objects"]["Pod"] >= SMALL * PODS_OF_EACH
    assert Figures.of(operator).objects.get("SharedKVDeployment") == SMALL, _others(api)
    assert measure.quiet(3.0)["writes"] == 0
    answering = measure.churn(minutes=0.15, rate=RATE)
    # Connections are taken and nothing comes: each question lasts for its whole second.
    os.kill(routers, signal.SIGSTOP)
    try:
        silent = measure.churn(minutes=0.15, rate=RATE)
    finally:
        os.kill(routers, signal.SIGCONT)
    assert Figures.of(operator).polls["unreachable"] > 0
    assert silent["inside_s"]["p95"] <= max(P95_S, 2 * answering["inside_s"]["p95"])
    for churn in (answering, silent):
        assert churn["outside_s"]["all"]["count"] >= 0.8 * churn["edits"]
        assert churn["unanswered_after_10_s"] == 0
        assert churn["faults"] == 0


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_a_burst_and_then_five_edits_a_second(start: Start) -> None:
    measure = start(wanted(BURST))
    filled = measure.burst()
    quiet = measure.quiet(20.0)
    churn = measure.churn(minutes=3, rate=RATE)
    report.write(
        "burst_and_edits",
        {"command": command("test-cluster-full"), "burst": filled, "quiet": quiet, "edits": churn},
    )
    assert quiet["writes"] == 0, "nothing changes, nothing is written"
    check(churn, minutes=3)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_churn_does_not_make_it_grow(start: Start) -> None:
    minutes = int(os.environ.get("PLAIT_SOAK_MINUTES") or 30)
    told: dict[str, Any] = {"command": command("soak-cluster")}

    def keep(name: str, figures: dict[str, Any]) -> dict[str, Any]:
        """Written as it comes: half an hour is long enough for something to end it."""
        told[name] = figures
        report.write("soak", told)
        return figures

    measure = start(wanted(MOST))
    keep("grown", measure.grow(wave=WAVE, minutes=float(os.environ.get("PLAIT_GROW_MINUTES") or 60)))
    keep("quiet", measure.quiet(20.0))
    # The first minutes fill caches and pools; they are told, and do not count for the growth.
    keep("first_minutes", measure.churn(minutes=2, rate=RATE))
    told["minutes"] = []

    def minute(_: int, figures: dict[str, Any]) -> None:
        keep("minutes", [*told["minutes"], figures])

    churn = keep("churn", measure.churn(minutes=minutes, rate=RATE, each=minute))
    check(churn, minutes=minutes)
    assert churn["mib_a_minute"] <= GROWTH_MIB
