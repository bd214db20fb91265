"""Traces off cost nothing; traces on want an address that can be one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from plait.router import tracing
from plait.router.config import ConfigError
from plait.router.tracing import OFF, TraceCounts, open_tracer


def test_off_gives_no_trace_and_closes_at_once() -> None:
    assert open_tracer("") is OFF
    assert not OFF.on
    assert OFF.request([(b"traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")]) is None
    assert OFF.counts == TraceCounts(exported=0, dropped=0)
    assert OFF.close()


def test_off_loads_nothing_of_opentelemetry() -> None:
    code = (
        "import sys; from plait.router.tracing import open_tracer; open_tracer('');"
        "print([m for m in sys.modules if m.split('.')[0] in ('opentelemetry', 'requests', 'google')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        (" http://[::1]:4318 ", "http://[::1]:4318/v1/traces"),
        ("http://collector:4318/otlp/v1/traces", "http://collector:4318/otlp/v1/traces"),
    ],
)
def test_an_address_without_a_path_gets_the_usual_one(endpoint: str, url: str) -> None:
    assert tracing._traces_url(endpoint) == url


@pytest.mark.parametrize(
    "endpoint",
    ["collector:4318", "grpc://collector:4317", "http://", "http://c:99999", "http://c/?x=1", "http://c/#x"],
)
def test_what_is_no_address_is_refused_with_an_example(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="http://collector:4318") as refused:
        open_tracer(endpoint)
    assert (refused.value.field, refused.value.value) == ("otlp_endpoint", endpoint)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS") as refused:
        open_tracer("http://me:hunter2@collector:4318")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("sample", [-0.1, 1.1, float("nan")])
def test_a_part_of_traces_is_from_0_to_1(sample: float) -> None:
    with pytest.raises(ConfigError, match="otlp_sample"):
        open_tracer("http://collector:4318", sample=sample)


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "plait.router.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(ConfigError, match=r"plait\[otlp\]") as refused:
        open_tracer("http://collector:4318")
    assert refused.value.field == "otlp_endpoint"


def test_variables_that_opentelemetry_refuses_are_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1000000")
    with pytest.raises(ConfigError, match=r"OTEL_… variables: .*max_export_batch_size"):
        open_tracer("http://collector:4318")
