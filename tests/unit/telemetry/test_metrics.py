"""Metric definitions: names that Prometheus takes, each once."""

from __future__ import annotations

import re
import sys

import pytest

from plait.telemetry.metrics import ALL_METRICS, ENGINE_METRICS, ROUTER_METRICS, Kind, Metric


@pytest.mark.parametrize("metric", ALL_METRICS, ids=lambda m: m.name)
def test_names_follow_the_rules(metric: Metric) -> None:
    assert re.fullmatch(r"plait_[a-z]+(_[a-z]+)*", metric.name)
    assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket", "_info", "_created"))
    assert metric.help.endswith(".") or metric.help.endswith(").")
    assert len(set(metric.labels)) == len(metric.labels)
    assert (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_each_name_is_defined_once_and_listed() -> None:
    names = [m.name for m in ALL_METRICS]
    assert len(set(names)) == len(names)
    module = sys.modules[Metric.__module__]
    defined = {v for v in vars(module).values() if isinstance(v, Metric)}
    assert defined == set(ALL_METRICS) == set(ROUTER_METRICS) | set(ENGINE_METRICS)


def test_sample_names() -> None:
    assert Metric("plait_x", Kind.COUNTER, "x.").sample_name == "plait_x_total"
    assert Metric("plait_x", Kind.GAUGE, "x.").sample_name == "plait_x"
    assert Metric("plait_x", Kind.HISTOGRAM, "x.", (), (1.0,)).sample_name == "plait_x_count"
