"""Who may talk to whom, over the chart's policies and a deployment's together.

The test node does not enforce policies: the rows are asked of a pure function over what is rendered.
"""

from __future__ import annotations

import pytest
from tests.cluster.chart.conftest import Render
from tests.cluster.harness.api import Manifest
from tests.support.who_may_talk import End, may_talk
from tests.unit.operator.children.given import context

from plait_operator import names
from plait_operator.children.policies import policies


@pytest.fixture(scope="module")
def all_policies(render: Render) -> list[Manifest]:
    told = [m for m in render() if m["kind"] == "NetworkPolicy"]
    return [*told, *policies(context())]


@pytest.fixture(scope="module")
def ends(render: Render) -> dict[str, End]:
    """Every pod of the story by its name."""
    told = render()
    own = {
        m["metadata"]["name"]: End.pod(m["spec"]["template"], namespace="plait-system")
        for m in told
        if m["kind"] == "Deployment"
    }
    (test,) = [m for m in told if m["kind"] == "Pod"]
    engines = {
        role: End(namespace="serving", labels=names.labels("glm", role=role))
        for role in ("router", "prefill", "decode")
    }
    return {
        "operator": own["plait-operator"],
        "admission": own["plait-admission"],
        "helm-test": End.pod(test, namespace="plait-system"),
        **engines,
        "api-server": End(ip="192.0.2.10"),
        "prometheus": End(namespace="monitoring", labels={"app": "prometheus"}),
        "dns": End(namespace="kube-system", labels={"k8s-app": "kube-dns"}),
        "beside": End(namespace="plait-system", labels={"app": "other"}),
        "stranger": End(namespace="elsewhere", labels={"app": "web"}),
        "false-router": End(namespace="elsewhere", labels={"plait.dev/role": "router"}),
    }


def test_the_api_server_may_listen_elsewhere(render: Render, ends: dict[str, End]) -> None:
    told = render({"networkPolicies": {"apiServerPorts": [443, 16443]}})
    moved = [m for m in told if m["kind"] == "NetworkPolicy"]
    allowed = {
        port: may_talk(moved, ends["operator"], ends["api-server"], port) for port in (443, 6443, 16443)
    }
    assert allowed == {443: True, 6443: False, 16443: True}
    assert not may_talk(moved, ends["admission"], ends["api-server"], 16443)


ROWS = [
    # source, target, port, protocol, allowed
    ("operator", "api-server", 6443, "TCP", True),
    ("operator", "api-server", 443, "TCP", True),
    ("operator", "api-server", 80, "TCP", False),
    ("operator", "dns", 53, "UDP", True),
    ("operator", "router", 8001, "TCP", True),
    ("operator", "router", 8000, "TCP", False),
    ("operator", "prefill", 30000, "TCP", False),
    ("operator", "decode", 30000, "TCP", False),
    ("operator", "false-router", 8001, "TCP", False),
    ("operator", "admission", 8443, "TCP", False),
    ("operator", "stranger", 8080, "TCP", False),
    ("admission", "api-server", 6443, "TCP", False),
    ("admission", "dns", 53, "UDP", False),
    ("admission", "router", 8001, "TCP", False),
    ("admission", "stranger", 443, "TCP", False),
    ("api-server", "admission", 8443, "TCP", True),
    ("api-server", "admission", 8081, "TCP", False),
    ("api-server", "operator", 8081, "TCP", False),
    ("prometheus", "operator", 8081, "TCP", True),
    ("prometheus", "admission", 8081, "TCP", True),
    ("prometheus", "router", 8001, "TCP", True),
    ("helm-test", "operator", 8081, "TCP", True),
    ("helm-test", "admission", 8443, "TCP", True),
    ("helm-test", "router", 8001, "TCP", False),
    ("beside", "operator", 8081, "TCP", False),
    ("beside", "router", 8001, "TCP", False),
    ("stranger", "operator", 8081, "TCP", False),
    ("stranger", "admission", 8081, "TCP", False),
    ("stranger", "router", 8000, "TCP", True),
    ("router", "operator", 8081, "TCP", False),
    ("prefill", "operator", 8081, "TCP", False),
    ("router", "api-server", 6443, "TCP", True),
]


@pytest.mark.parametrize(
    ("source", "target", "port", "protocol", "allowed"),
    ROWS,
    ids=[f"{source}-{target}-{port}" for source, target, port, *_ in ROWS],
)
def test_who_may_talk_to_whom(
    all_policies: list[Manifest],
    ends: dict[str, End],
    source: str,
    target: str,
    port: int,
    protocol: str,
    allowed: bool,
) -> None:
    assert may_talk(all_policies, ends[source], ends[target], port, protocol=protocol) is allowed
