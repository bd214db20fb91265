"""Counts and timings: cheap to count, added up over processes, and written as the client library would."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.registry import Collector

from plait.router.tally import Row, Tallies, Timing, added, families
from plait.telemetry import metrics as names


class Rows(Collector):
    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def collect(self):  # type: ignore[no-untyped-def]
        return families(self.rows)


def written(rows: list[Row]) -> str:
    registry = CollectorRegistry()
    registry.register(Rows(rows))
    return generate_latest(registry).decode()


def test_count_of_the_same_labels_is_the_same() -> None:
    tallies = Tallies()
    tallies.count(names.RETRIES, "prefill", "broken").inc()
    tallies.count(names.RETRIES, "prefill", "broken").inc(2)
    tallies.count(names.RETRIES, "decode", "broken").inc()
    assert tallies.rows() == [
        ("plait_router_retries", ("prefill", "broken"), [3.0]),
        ("plait_router_retries", ("decode", "broken"), [1.0]),
    ]


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (0.5, 0), (0.51, 1), (1.0, 1), (2.0, 2), (2.1, 3), (1e9, 3)]
)
def test_bound_of_a_bucket_is_in_it(seconds: float, bucket: int) -> None:
    timing = Timing((0.5, 1.0, 2.0))
    timing.observe(seconds)
    assert timing.counts == [int(i == bucket) for i in range(4)]
    assert timing.sum == seconds


def test_labels_and_kinds_are_checked() -> None:
    tallies = Tallies()
    with pytest.raises(ValueError, match="plait_router_retries is a counter with labels"):
        tallies.count(names.RETRIES, "prefill")
    with pytest.raises(ValueError, match="not histogram"):
        tallies.timing(names.RETRIES, "prefill", "broken")
    with pytest.raises(ValueError, match="not counter"):
        tallies.count(names.QUEUE_SECONDS)
    assert tallies.rows() == []


def test_what_is_scraped_is_what_the_client_library_writes() -> None:
    tallies, registry = Tallies(), CollectorRegistry()
    metric = names.FIRST_BYTE_SECONDS
    theirs = Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry)
    for seconds in (0.004, 0.005, 0.3, 7.0, 1e4):
        tallies.timing(metric, "/generate").observe(seconds)
        theirs.labels("/generate").observe(seconds)
    tallies.count(names.REQUESTS, "/generate", "ok").inc(3)
    ours = written(tallies.rows())
    assert [*generate_latest(registry).decode().splitlines()] == [
        line for line in ours.splitlines() if metric.name in line
    ] + [line for line in generate_latest(registry).decode().splitlines() if "_created" in line]
    assert 'plait_router_requests_total{outcome="ok",route="/generate"} 3.0' in ours
    # What has counted nothing yet is named all the same.
    assert "# TYPE plait_router_retries_total counter" in ours


def test_processes_are_added_up() -> None:
    several = []
    for by in (1, 2):
        tallies = Tallies()
        tallies.count(names.RETRIES, "prefill", "broken").inc(by)
        tallies.count(names.RETRIES, "decode", str(by)).inc()
        tallies.timing(names.QUEUE_SECONDS).observe(by)
        several.append(tallies.rows())
    found = {(name, labels): numbers for name, labels, numbers in added(several)}
    assert found["plait_router_retries", ("prefill", "broken")] == [3.0]
    assert found["plait_router_retries", ("decode", "1")] == [1.0]
    assert found["plait_router_retries", ("decode", "2")] == [1.0]
    waits = found["plait_router_queue_seconds", ()]
    assert waits[-1] == 3.0
    assert sum(waits[:-1]) == 2
    # What was added up is not what it was made of.
    before = several[0][0][2][0]
    added([several[0], several[0]])
    assert several[0][0][2][0] == before
    assert added([]) == []
