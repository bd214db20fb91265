"""Nothing is scraped that is not told, and nothing is made whose kind the cluster does not know."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.children.given import context

from plait_operator.children.monitors import monitors
from plait_operator.children.services import services

BOTH = ("ServiceMonitor", "PodMonitor")
TELLS = {"image": "sglang:0.5.17", "args": {"enable_metrics": True}}


@pytest.mark.parametrize(
    ("apis", "spec", "made"),
    [
        ((), {"engine": TELLS}, []),
        (BOTH, {}, [("ServiceMonitor", "router")]),
        (("PodMonitor",), {}, []),
        (("ServiceMonitor",), {"engine": TELLS}, [("ServiceMonitor", "router")]),
        (
            BOTH,
            {"engine": TELLS},
            [("ServiceMonitor", "router"), ("PodMonitor", "prefill"), ("PodMonitor", "decode")],
        ),
        (("PodMonitor",), {"decode": {"args": {"--enable-metrics": True}}}, [("PodMonitor", "decode")]),
        (
            ("PodMonitor",),
            {"engine": TELLS, "decode": {"args": {"enable_metrics": False}}},
            [("PodMonitor", "prefill")],
        ),
    ],
)
def test_what_is_scraped(apis: tuple[str, ...], spec: dict[str, Any], made: list[tuple[str, str]]):
    told = monitors(context(apis=apis, **spec))
    assert [(m["kind"], m["metadata"]["labels"]["plait.dev/role"]) for m in told] == made


def test_the_service_monitor_picks_one_service_port():
    (monitor,) = monitors(context(apis=("ServiceMonitor",)))
    wanted, (endpoint,) = monitor["spec"]["selector"]["matchLabels"], monitor["spec"]["endpoints"]
    picked = [
        service["metadata"]["name"]
        for service in services(context())
        if wanted.items() <= service["metadata"]["labels"].items()
        and endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    ]
    assert picked == ["glm-router-admin"]
