"""The routers' Deployment."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.restricted import faults
from tests.unit.operator.children.given import context
from typer.main import get_command

from plait.cli import app
from plait_operator.children.context import Release
from plait_operator.children.router import router


def pod(**spec: Any) -> dict[str, Any]:
    return router(context(**spec))["spec"]["template"]["spec"]


def container(**spec: Any) -> dict[str, Any]:
    (only,) = pod(**spec)["containers"]
    return only


SAFE = {"auth": {"secretRef": {"name": "keys"}}, "tls": {"secretRef": {"name": "cert"}}}


@pytest.mark.parametrize("settings", [{}, SAFE, {"processes": 4, "policy": "random"}])
def test_the_real_command_line_takes_the_arguments(settings: dict[str, Any]):
    command = get_command(app).commands["router"]  # type: ignore[attr-defined]
    told = command.make_context("router", list(container(router=settings)["args"])).params
    assert told["kubernetes"] is True
    assert told["kubernetes_instance"] == "glm"
    assert (told["host"], told["port"], told["admin_port"]) == ("0.0.0.0", 8000, 8001)
    assert told["policy"] == settings.get("policy", "prefix-aware")
    assert told["processes"] == settings.get("processes", 1)
    assert told["drain_timeout"] == 120


@pytest.mark.parametrize("settings", [{}, SAFE])
def test_nobody_changes_its_workers_without_a_key(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]):
    told = container(router=settings)
    [key] = [v["valueFrom"] for v in told["env"] if v["name"] == "ADMIN_API_KEY"]
    assert key == {"fieldRef": {"fieldPath": "metadata.uid"}}
    # The variable is the one that the router reads.
    monkeypatch.setenv("ADMIN_API_KEY", "a-uid")
    command = get_command(app).commands["router"]  # type: ignore[attr-defined]
    assert command.make_context("router", list(told["args"])).params["admin_api_key"] == "a-uid"


def test_a_key_of_ones_own_takes_its_place():
    own = {"name": "ADMIN_API_KEY", "valueFrom": {"secretKeyRef": {"name": "admin", "key": "key"}}}
    template = {"spec": {"containers": [{"name": "router", "env": [own]}]}}
    env = container(router={"podTemplate": template})["env"]
    assert [v for v in env if v["name"] == "ADMIN_API_KEY"] == [own]


def test_keys_and_certificate_are_mounted_where_the_arguments_say():
    args = container(router=SAFE)["args"]
    assert "--api-keys=/etc/plait/keys" in args
    assert "--tls-certificate=/etc/plait/tls/tls.crt" in args
    assert "--tls-key=/etc/plait/tls/tls.key" in args
    mounts = {m["mountPath"]: m for m in container(router=SAFE)["volumeMounts"]}
    assert mounts["/etc/plait/keys"]["readOnly"]
    assert mounts["/etc/plait/tls"]["readOnly"]
    assert not any("subPath" in mount for mount in mounts.values())
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod(router=SAFE)["volumes"] if "secret" in v}
    assert secrets == {"keys": "keys", "tls": "cert"}


def test_without_them_nothing_is_mounted_but_a_folder_for_what_is_passing():
    assert [m["mountPath"] for m in container()["volumeMounts"]] == ["/tmp"]


@pytest.mark.parametrize("settings", [{}, SAFE])
def test_pod_security_restricted(settings: dict[str, Any]):
    assert faults(pod(router=settings)) == []
    assert container(router=settings)["securityContext"]["readOnlyRootFilesystem"] is True


def test_probes_ask_the_plain_port_also_where_clients_speak_tls():
    told = container(router=SAFE)
    for probe, path in (
        ("startupProbe", "/health"),
        ("livenessProbe", "/health"),
        ("readinessProbe", "/ready"),
    ):
        assert told[probe]["httpGet"] == {"path": path, "port": "admin"}


@pytest.mark.parametrize("drain", [0, 120, 3600])
def test_the_pod_outlives_its_drain(drain: int):
    rollout = {"drainSeconds": drain}
    leave = container(rollout=rollout)["lifecycle"]["preStop"]["sleep"]["seconds"]
    # 15 s at least beyond the drain (docs/router.md), and the sleep counts too.
    assert pod(rollout=rollout)["terminationGracePeriodSeconds"] >= leave + drain + 15
    assert f"--drain-timeout={drain}" in container(rollout=rollout)["args"]


def test_a_rollout_takes_no_router_away_before_a_new_one_is_ready():
    assert router(context())["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_selector_is_made_of_labels_that_its_pods_have():
    told = router(context())["spec"]
    assert told["selector"]["matchLabels"].items() <= told["template"]["metadata"]["labels"].items()


def test_image_pull_policy_secrets_and_priority():
    assert container()["image"] == Release().router_image
    assert container(router={"image": "mine:1"})["image"] == "mine:1"
    told = pod(pods={"imagePullSecrets": [{"name": "pull"}], "priorityClassName": "high"})
    assert told["imagePullSecrets"] == [{"name": "pull"}]
    assert told["priorityClassName"] == "high"


def test_resources_grow_with_processes_unless_they_are_given():
    assert container()["resources"]["requests"] == {"cpu": "500m", "memory": "256Mi"}
    assert container(router={"processes": 3})["resources"]["requests"] == {"cpu": "2000m", "memory": "1024Mi"}
    mine = {"requests": {"cpu": "3"}}
    assert container(router={"resources": mine})["resources"] == mine


def test_no_variables_of_services_reach_the_pod():
    assert pod()["enableServiceLinks"] is False


def test_the_pod_template_is_merged_in_and_takes_no_label_of_ours_away():
    told = router(
        context(
            router={
                "podTemplate": {
                    "metadata": {
                        "labels": {"team": "x", "plait.dev/role": "decode"},
                        "annotations": {"a": "b"},
                    },
                    "spec": {
                        "tolerations": [{"key": "infra"}],
                        "containers": [{"name": "router", "env": [{"name": "A", "value": "1"}]}],
                    },
                }
            }
        )
    )["spec"]["template"]
    assert told["metadata"]["labels"]["team"] == "x"
    assert told["metadata"]["labels"]["plait.dev/role"] == "router"
    assert told["metadata"]["annotations"] == {"a": "b"}
    assert told["spec"]["tolerations"] == [{"key": "infra"}]
    (only,) = told["spec"]["containers"]
    assert {"name": "A", "value": "1"} in only["env"]
    assert only["args"] == container()["args"]
