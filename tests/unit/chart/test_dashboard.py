"""The Grafana dashboard asks only for what is exported, by labels that are there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.telemetry.metrics import ALL_METRICS, Kind, Metric
from plait.telemetry.operator_metrics import ADMISSION_METRICS, CONTROLLER_METRICS

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "charts/plait/files/dashboard.json").read_text()
)
# Prometheus gives these to every sample of a target that it found through Kubernetes.
TARGET = {"namespace", "job", "pod", "service", "instance", "container", "endpoint"}


def samples(metric: Metric) -> dict[str, set[str]]:
    """Names that a query may use for a metric, each with its labels."""
    labels = set(metric.labels) | TARGET
    if metric.kind is Kind.HISTOGRAM:
        return {
            f"{metric.name}_bucket": labels | {"le"},
            f"{metric.name}_sum": labels,
            f"{metric.name}_count": labels,
        }
    return {metric.sample_name: labels}


KNOWN = {
    name: labels
    for m in (*ALL_METRICS, *CONTROLLER_METRICS, *ADMISSION_METRICS)
    for name, labels in samples(m).items()
}


def queries() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("title", "query"), list(queries()), ids=[title for title, _ in queries()])
def test_every_query_names_metrics_and_labels_that_exist(title: str, query: str):
    asked = re.findall(r"\bplait_\w+", query)
    assert asked, title
    assert set(asked) <= set(KNOWN)
    labels = set.intersection(*(KNOWN[name] for name in asked))
    for name, matchers in re.findall(r"(plait_\w+)\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= KNOWN[name]
    for by in re.findall(r"by \(([^)]*)\)", query):
        assert {label.strip() for label in by.split(",")} <= labels
    # A counter is shown by its rate, and nothing else is.
    for name in asked:
        counts = name.endswith(("_total", "_bucket", "_sum", "_count"))
        assert counts == (re.search(rf"rate\({name}\b", query) is not None)


def test_variables_ask_for_metrics_that_exist():
    told = [v["definition"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    assert told
    for query in told:
        assert set(re.findall(r"\bplait_\w+", query)) <= set(KNOWN)


def test_every_variable_is_used_and_defined():
    defined = {v["name"] for v in DASHBOARD["templating"]["list"]}
    used = {
        name
        for _, query in queries()
        for name in re.findall(r"\$\{?(\w+)\}?", query)
        if not name.startswith("__")
    }
    assert used == defined - {"datasource"}


def test_panels_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells
