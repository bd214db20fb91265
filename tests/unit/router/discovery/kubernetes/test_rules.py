"""Which pods are targets: one row a state that a pod can be in."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.router.discovery.kubernetes.fake_apiserver import pod

from plait.router.discovery.kubernetes.rules import ADMITTED_GATE, PodRules, Skipped, pod_target
from plait.router.discovery.kubernetes.selector import Selector
from plait.router.discovery.target import Target

RULES = PodRules()
Change = Callable[[dict[str, Any]], object]


def condition(kind: str, status: str, **more: str) -> Change:
    """Sets a condition, or adds it."""

    def change(p: dict[str, Any]) -> None:
        others = [c for c in p["status"]["conditions"] if c["type"] != kind]
        p["status"]["conditions"] = [*others, {"type": kind, "status": status, **more}]

    return change


def gates(*kinds: str) -> Change:
    return lambda p: p["spec"].update(readinessGates=[{"conditionType": kind} for kind in kinds])


def deleted(p: dict[str, Any]) -> None:
    p["metadata"]["deletionTimestamp"] = "2026-01-01T00:10:00Z"


def ports(*named: tuple[str | None, int]) -> Change:
    listed = [{"containerPort": n, **({"name": name} if name else {})} for name, n in named]
    return lambda p: p["spec"]["containers"][0].update(ports=listed)


def judged(role: str, *changes: Change, rules: PodRules = RULES) -> Target | Skipped:
    made = copy.deepcopy(pod("p0", role, ip="10.1.2.3", uid="u"))
    for change in changes:
        change(made)
    return pod_target(made, rules)


PREFILL = Target.prefill(
    "http://10.1.2.3:30000", bootstrap_port=8998, bootstrap_host="10.1.2.3", identity="u/0"
)
DECODE = Target.decode("http://10.1.2.3:30000", identity="u/0")
UNREADY = condition("Ready", "False", message="containers with unready status: [engine]")


@pytest.mark.parametrize(
    ("role", "changes", "expected"),
    [
        pytest.param("prefill", [], PREFILL, id="prefill, ready"),
        pytest.param("decode", [], DECODE, id="decode, ready"),
        pytest.param(
            "decode",
            [lambda p: p["status"].update(podIP="fd00::1")],
            Target.decode("http://[fd00::1]:30000", identity="u/0"),
            id="IPv6",
        ),
        pytest.param(
            "prefill",
            [lambda p: p["status"].update(podIP="fd00::1")],
            Target.prefill("http://[fd00::1]:30000", bootstrap_port=8998, identity="u/0"),
            id="IPv6 bootstrap host has no brackets",
        ),
        pytest.param(
            "decode",
            [lambda p: p["spec"]["containers"].insert(0, {"name": "proxy", "ports": [{"containerPort": 1}]})],
            DECODE,
            id="the port is found by its name in any container",
        ),
        pytest.param(
            "decode",
            [gates(ADMITTED_GATE), UNREADY],
            DECODE,
            id="the router's own gate is not waited for",
        ),
        pytest.param(
            "decode",
            [gates(ADMITTED_GATE, "lb/ready"), UNREADY, condition("lb/ready", "True")],
            DECODE,
            id="another gate that is open",
        ),
    ],
)
def test_targets(role: str, changes: list[Change], expected: Target) -> None:
    assert judged(role, *changes) == expected


@pytest.mark.parametrize(
    ("role", "changes", "reason", "fault"),
    [
        pytest.param("decode", [UNREADY], "Ready is False: containers with unready", False, id="NotReady"),
        pytest.param("decode", [condition("Ready", "Unknown")], "Ready is Unknown", False, id="node lost"),
        pytest.param("decode", [lambda p: p["status"].update(conditions=[])], "not known", False, id="new"),
        pytest.param("decode", [lambda p: p.update(status={})], "phase is None", False, id="no status"),
        pytest.param(
            "decode", [lambda p: p["status"].update(phase="Pending")], "Pending", False, id="pending"
        ),
        pytest.param("decode", [lambda p: p["status"].update(phase="Failed")], "Failed", False, id="evicted"),
        pytest.param(
            "decode", [lambda p: p["status"].update(podIP="")], "no address", False, id="no address"
        ),
        pytest.param("decode", [lambda p: p["status"].pop("podIP")], "no address", False, id="address gone"),
        pytest.param(
            "decode",
            [deleted, lambda p: p["status"].update(phase="Succeeded")],
            "Succeeded",
            False,
            id="deleted and done",
        ),
        pytest.param("decode", [ports((None, 30000))], "named http", True, id="port without a name"),
        pytest.param("decode", [lambda p: p["spec"].clear()], "named http", True, id="no containers"),
        pytest.param("prefill", [ports(("http", 1))], "named bootstrap", True, id="no bootstrap port"),
        pytest.param(
            "decode",
            [lambda p: p["status"].update(podIP="not an address")],
            "cannot be used",
            True,
            id="address that is none",
        ),
        pytest.param("other", [], "neither side", False, id="another role"),
        pytest.param("decode", [lambda p: p["metadata"].pop("labels")], "neither", False, id="no labels"),
        pytest.param("decode", [lambda p: p.clear()], "neither side", False, id="nothing at all"),
        pytest.param(
            "prefill",
            [lambda p: p["metadata"]["labels"].update({"leaderworkerset.sigs.k8s.io/worker-index": "1"})],
            "first pod of its group",
            False,
            id="not the leader",
        ),
        pytest.param(
            "decode",
            [gates(ADMITTED_GATE), UNREADY, condition("ContainersReady", "False")],
            "ContainersReady is False",
            False,
            id="own gate, containers not ready",
        ),
        pytest.param(
            "decode",
            [gates(ADMITTED_GATE, "lb/ready"), UNREADY],
            "lb/ready is not known",
            False,
            id="another gate that is shut",
        ),
        pytest.param(
            "decode", [gates("lb/ready"), UNREADY], "Ready is False", False, id="a gate that is not ours"
        ),
    ],
)
def test_skipped(role: str, changes: list[Change], reason: str, fault: bool) -> None:
    found = judged(role, *changes)
    assert isinstance(found, Skipped)
    assert reason in found.reason
    assert found.fault is fault


@pytest.mark.parametrize("changes", [[deleted], [deleted, UNREADY], [deleted, gates(ADMITTED_GATE)]])
def test_a_pod_that_is_being_deleted_drains(changes: list[Change]) -> None:
    found = judged("decode", *changes)
    assert isinstance(found, Target)
    assert found.draining
    assert "2026-01-01T00:10:00Z" in found.reason
    assert found.key == DECODE


def test_the_first_pod_of_a_group_is_a_target() -> None:
    index = "leaderworkerset.sigs.k8s.io/worker-index"
    assert judged("prefill", lambda p: p["metadata"]["labels"].update({index: "0"})) == PREFILL


def identity(*changes: Change) -> str:
    found = judged("decode", *changes)
    assert isinstance(found, Target)
    return found.identity


def test_a_restart_of_the_engine_is_another_identity_and_one_of_a_helper_is_not() -> None:
    def restarts(**counts: int) -> Change:
        states = [{"name": name, "restartCount": count} for name, count in counts.items()]
        return lambda p: p["status"].update(containerStatuses=states)

    assert identity(restarts(engine=0, helper=0)) == identity(restarts(engine=0, helper=7)) == "u/0"
    assert identity(restarts(engine=1, helper=0)) == "u/1"
    assert identity(lambda p: p["metadata"].update(uid="v")) == "v/0"
    # Where no container names the port, any of them may be the engine.
    unnamed = PodRules(http_port=30000)
    found = judged("decode", ports((None, 30000)), restarts(a=1, b=2), rules=unnamed)
    assert isinstance(found, Target)
    assert found.identity == "u/3"


def test_ports_of_pods_that_name_none() -> None:
    rules = PodRules(http_port=40000, bootstrap_port=9000, scheme="https")
    assert judged("prefill", lambda p: p["spec"].clear(), rules=rules) == Target.prefill(
        "https://10.1.2.3:40000", bootstrap_port=9000, identity="u/0"
    )
    # A name comes before the setting.
    found = judged("prefill", rules=rules)
    assert isinstance(found, Target)
    assert (found.url, found.bootstrap_port) == ("https://10.1.2.3:30000", 8998)


def test_other_names_and_labels() -> None:
    rules = PodRules(
        prefill=Selector((("component", "p"),)),
        decode=Selector((("component", "d"),)),
        http_port_name="api",
    )
    changes = [lambda p: p["metadata"].update(labels={"component": "d"}), ports(("api", 5))]
    assert judged("x", *changes, rules=rules) == Target.decode("http://10.1.2.3:5", identity="u/0")
    assert isinstance(judged("decode", rules=rules), Skipped)
