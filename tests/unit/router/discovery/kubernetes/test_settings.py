"""Settings of the Kubernetes source."""

from __future__ import annotations

from typing import Any

import pytest

from plait.router.config import ConfigError
from plait.router.discovery.kubernetes.rules import PodRules
from plait.router.discovery.kubernetes.settings import KubernetesSettings


def test_defaults_select_both_roles_by_one_selector() -> None:
    settings = KubernetesSettings()
    assert settings.label_selector() == "plait.dev/role in (prefill,decode)"
    assert settings.rules() == PodRules()


def test_an_instance_narrows_both_sides() -> None:
    settings = KubernetesSettings(instance="glm")
    assert settings.label_selector() == "app.kubernetes.io/instance=glm,plait.dev/role in (prefill,decode)"
    for selector in (settings.rules().prefill, settings.rules().decode):
        assert ("app.kubernetes.io/instance", "glm") in selector.labels


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"prefill": "x"}, "kubernetes prefill"),
        ({"decode": "plait.dev/role=prefill"}, "kubernetes prefill, decode"),
        ({"instance": "a b"}, "kubernetes prefill"),
        ({"http_port": 70_000}, "kubernetes http_port"),
        ({"bootstrap_port": -1}, "kubernetes bootstrap_port"),
        ({"http_port_name": ""}, "kubernetes http_port_name"),
        ({"scheme": "grpc"}, "kubernetes scheme"),
        ({"namespace": "../default"}, "kubernetes namespace"),
        ({"resync": 0}, "kubernetes resync"),
        ({"watch": -1.0}, "kubernetes watch"),
        ({"margin": float("nan")}, "kubernetes margin"),
        ({"timeout": float("inf")}, "kubernetes timeout"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KubernetesSettings(**wrong)
    assert caught.value.field == field
    assert caught.value.fix
