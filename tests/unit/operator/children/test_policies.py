"""Who may talk to whom, as the NetworkPolicies say. Every row is asked of the rendered policies."""

from __future__ import annotations

import pytest
from tests.support.who_may_talk import End, may_talk
from tests.unit.operator.children.given import context

from plait_operator import names
from plait_operator.children.context import Release
from plait_operator.children.policies import OPERATOR_LABELS, policies


def role(name: str, *, instance: str = "glm", namespace: str = "serving") -> End:
    return End(namespace=namespace, labels=names.labels(instance, role=name))


PREFILL, DECODE, ROUTER, INSPECT = (role(name) for name in ("prefill", "decode", "router", "inspect"))
STRANGER = End(namespace="serving", labels={"app": "web"})
AFAR = End(namespace="elsewhere", labels={"app": "web"})
OPERATOR = End(namespace="plait-system", labels=OPERATOR_LABELS)
BESIDE_OPERATOR = End(namespace="plait-system", labels={"app": "other"})
PROMETHEUS = End(namespace="monitoring", labels={"app": "prometheus"})
DNS = End(namespace="kube-system", labels={"k8s-app": "kube-dns"})
NODE_DNS = End(ip="169.254.20.10")
INTERNET = End(ip="203.0.113.7")
API = End(ip="10.96.0.1")
HUB = {"model": {"name": "m", "source": {"hub": {"repo": "zai-org/GLM-5"}}}}

ROWS = [
    # source, target, port, allowed
    (STRANGER, ROUTER, 8000, True),
    (AFAR, ROUTER, 8000, True),
    (INTERNET, ROUTER, 8000, True),
    (STRANGER, ROUTER, 8001, False),
    (AFAR, ROUTER, 8001, False),
    (INTERNET, ROUTER, 8001, False),
    (OPERATOR, ROUTER, 8001, True),
    (BESIDE_OPERATOR, ROUTER, 8001, False),
    (End(namespace="serving", labels=OPERATOR_LABELS), ROUTER, 8001, False),
    (PROMETHEUS, ROUTER, 8001, True),
    (PREFILL, ROUTER, 8001, False),
    (ROUTER, PREFILL, 30000, True),
    (ROUTER, DECODE, 30000, True),
    (ROUTER, PREFILL, 8998, False),
    (ROUTER, DECODE, 17000, False),
    (ROUTER, ROUTER, 8001, False),
    (STRANGER, PREFILL, 30000, False),
    (STRANGER, DECODE, 30000, False),
    (AFAR, DECODE, 30000, False),
    (INTERNET, DECODE, 30000, False),
    (OPERATOR, DECODE, 30000, False),
    (PROMETHEUS, PREFILL, 30000, True),
    (PROMETHEUS, DECODE, 30000, True),
    (PROMETHEUS, PREFILL, 8998, False),
    (DECODE, PREFILL, 8998, True),
    (DECODE, PREFILL, 17000, True),
    (PREFILL, DECODE, 17000, True),
    (PREFILL, DECODE, 65535, True),
    (PREFILL, DECODE, 30000, False),
    (DECODE, PREFILL, 30000, False),
    (PREFILL, DECODE, 22, False),
    (PREFILL, PREFILL, 5000, False),
    (DECODE, DECODE, 17000, False),
    (STRANGER, PREFILL, 8998, False),
    # Another deployment in the namespace is a stranger too.
    (role("router", instance="other"), PREFILL, 30000, False),
    (role("decode", instance="other"), PREFILL, 8998, False),
    (role("router", namespace="elsewhere"), PREFILL, 30000, False),
    (role("decode", namespace="elsewhere"), PREFILL, 8998, False),
    (ROUTER, API, 443, True),
    (ROUTER, API, 6443, True),
    (ROUTER, INTERNET, 80, False),
    (PREFILL, API, 443, False),
    (DECODE, API, 6443, False),
    (PREFILL, INTERNET, 443, False),
    (INSPECT, INTERNET, 443, False),
    (INSPECT, API, 6443, False),
    (INSPECT, DECODE, 30000, False),
    (ROUTER, INSPECT, 30000, False),
    (PREFILL, STRANGER, 8080, False),
    (ROUTER, STRANGER, 8080, False),
]


def told(end: End) -> str:
    return "/".join((end.namespace or end.ip, end.labels.get(names.ROLE) or end.labels.get("app", "")))


@pytest.mark.parametrize(
    ("source", "target", "port", "allowed"), ROWS, ids=[f"{told(s)}-{told(t)}-{p}" for s, t, p, _ in ROWS]
)
def test_who_may_talk_to_whom(source: End, target: End, port: int, allowed: bool):
    assert may_talk(policies(context()), source, target, port) is allowed


@pytest.mark.parametrize("end", [PREFILL, DECODE, ROUTER, INSPECT], ids=told)
@pytest.mark.parametrize("server", [DNS, NODE_DNS], ids=["cluster", "node"])
def test_every_pod_may_ask_for_names_and_nobody_else_is_dns(end: End, server: End):
    for protocol in ("UDP", "TCP"):
        assert may_talk(policies(context()), end, server, 53, protocol=protocol)
    assert not may_talk(policies(context()), end, STRANGER, 53, protocol="UDP")
    assert not may_talk(policies(context()), end, INTERNET, 53, protocol="UDP")


@pytest.mark.parametrize("end", [PREFILL, DECODE, INSPECT], ids=told)
def test_only_a_hub_opens_a_way_out(end: End):
    for address in ("203.0.113.7", "2001:db8::7"):
        assert may_talk(policies(context(**HUB)), end, End(ip=address), 443)
        assert not may_talk(policies(context(**HUB)), end, End(ip=address), 80)
        assert not may_talk(policies(context()), end, End(ip=address), 443)


def test_ranks_of_a_group_on_several_nodes_talk_to_each_other_and_to_no_decode_pod_alike():
    wide = policies(context(prefill={"nodesPerGroup": 2}))
    assert may_talk(wide, PREFILL, PREFILL, 5000)
    assert may_talk(wide, PREFILL, PREFILL, 4791, protocol="UDP")
    assert not may_talk(wide, DECODE, DECODE, 5000)


def test_routers_reach_engines_in_the_nodes_network():
    node = End(ip="192.0.2.10")  # Such a pod has its node's address, and selectors of pods do not match it.
    wide = policies(context(pods={"hostNetwork": True}))
    assert may_talk(wide, ROUTER, node, 30000)
    assert not may_talk(wide, ROUTER, node, 22)
    assert not may_talk(policies(context()), ROUTER, node, 30000)
    [rules] = [p["spec"]["egress"] for p in wide if p["metadata"]["name"] == "glm-router"]
    # Neither selectors nor ranges of addresses: some network plugins leave nodes out of both.
    assert {"ports": [{"protocol": "TCP", "port": 30000}]} in rules


def test_where_the_api_server_is_can_be_narrowed():
    narrow = policies(context(release=Release(api_server_cidrs=("10.96.0.1/32",))))
    assert may_talk(narrow, ROUTER, API, 443)
    assert not may_talk(narrow, ROUTER, INTERNET, 443)


def test_the_api_server_may_listen_elsewhere():
    moved = policies(context(release=Release(api_server_ports=(443, 16443))))
    assert may_talk(moved, ROUTER, API, 443)
    assert may_talk(moved, ROUTER, API, 16443)
    assert not may_talk(moved, ROUTER, API, 6443)
    assert not may_talk(moved, PREFILL, API, 16443)


def test_monitoring_and_the_operator_may_be_elsewhere():
    moved = policies(context(release=Release(namespace="ops", monitoring_namespace="prom")))
    assert may_talk(moved, End(namespace="prom"), ROUTER, 8001)
    assert not may_talk(moved, PROMETHEUS, ROUTER, 8001)
    assert may_talk(moved, End(namespace="ops", labels=OPERATOR_LABELS), ROUTER, 8001)
    assert not may_talk(moved, OPERATOR, ROUTER, 8001)


def test_a_pod_of_the_deployment_without_a_role_talks_to_nobody():
    lost = End(namespace="serving", labels=names.labels("glm"))
    for other in (ROUTER, PREFILL, DECODE, STRANGER, INTERNET, DNS):
        assert not may_talk(policies(context()), lost, other, 443)
        assert not may_talk(policies(context()), other, lost, 443)


def test_others_pods_in_the_namespace_keep_their_ways():
    assert may_talk(policies(context()), STRANGER, AFAR, 80)
    assert may_talk(policies(context()), AFAR, STRANGER, 80)


def test_they_can_be_switched_off():
    assert policies(context(pods={"networkPolicies": False})) == []
