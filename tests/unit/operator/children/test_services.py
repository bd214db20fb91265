"""Services, and that they find what they are for."""

from __future__ import annotations

from tests.unit.operator.children.given import context

from plait_operator import names
from plait_operator.children.router import router
from plait_operator.children.services import services


def test_clients_have_an_address_with_the_deployments_name():
    client = services(
        context(
            router={"service": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}}},
        )
    )[0]
    assert client["metadata"]["name"] == "glm"
    assert client["metadata"]["annotations"] == {"a": "b"}
    assert client["spec"]["type"] == "LoadBalancer"
    assert [(p["port"], p["targetPort"]) for p in client["spec"]["ports"]] == [(443, "http")]


def test_the_ports_name_says_whether_it_is_tls():
    plain, safe = context(), context(router={"tls": {"secretRef": {"name": "cert"}}})
    assert services(plain)[0]["spec"]["ports"][0]["name"] == "http"
    assert services(safe)[0]["spec"]["ports"][0]["name"] == "https"


def test_each_picks_pods_that_have_the_port_it_names():
    pods = router(context())["spec"]["template"]
    known = {port["name"] for port in pods["spec"]["containers"][0]["ports"]}
    for service in services(context())[:2]:
        assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
        assert service["spec"]["ports"][0]["targetPort"] in known


def test_headless_ones_tell_pods_that_are_not_ready():
    for service in services(context())[1:]:
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True


def test_the_bootstrap_service_picks_prefill_of_every_revision():
    bootstrap = services(context())[2]
    assert bootstrap["spec"]["selector"] == names.selector("glm", role="prefill")
    assert bootstrap["spec"]["ports"][0]["port"] == 8998
