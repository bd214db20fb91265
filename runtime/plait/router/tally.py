"""What one process counts: plain numbers on the hot path, Prometheus families at a scrape.

The client library's own counters take a lock and several calls for each observation, and add processes up
through files; these cost an addition, and travel between processes as JSON. The library still writes what is
scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from plait.telemetry.metrics import ALL_METRICS, ROUTER_METRICS, Kind, Metric

# Metric name, label values, numbers: a count's one; a timing's buckets (the last is +Inf's) and sum.
Row: TypeAlias = tuple[str, tuple[str, ...], list[float]]

_METRICS = {metric.name: metric for metric in ALL_METRICS}


class Count:
    """A counter of one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, by: float = 1.0) -> None:
        """Add."""
        self.value += by


class Timing:
    """A histogram of one set of labels; seconds."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds


class Tallies:
    """All counts and timings of one process, made when first asked for."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, tuple[str, ...]], Count | Timing] = {}

    def count(self, metric: Metric, *labels: str) -> Count:
        """The counter of `metric` with these label values."""
        found = self._found.get((metric.name, labels))
        if found is None:
            _checked(metric, Kind.COUNTER, labels)
            found = self._found[metric.name, labels] = Count()
        assert isinstance(found, Count)
        return found

    def timing(self, metric: Metric, *labels: str) -> Timing:
        """The histogram of `metric` with these label values."""
        found = self._found.get((metric.name, labels))
        if found is None:
            _checked(metric, Kind.HISTOGRAM, labels)
            found = self._found[metric.name, labels] = Timing(metric.buckets)
        assert isinstance(found, Timing)
        return found

    def rows(self) -> list[Row]:
        """As they are now, for a report."""
        return [
            (name, labels, [float(n) for n in t.counts] + [t.sum] if isinstance(t, Timing) else [t.value])
            for (name, labels), t in self._found.items()
        ]


def added(several: Iterable[Iterable[Row]]) -> list[Row]:
    """The rows of several processes as those of one."""
    sums: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for rows in several:
        for name, labels, numbers in rows:
            key = name, labels
            before = sums.get(key)
            sums[key] = (
                list(numbers) if before is None else [a + b for a, b in zip(before, numbers, strict=True)]
            )
    return [(name, labels, numbers) for (name, labels), numbers in sums.items()]


def families(rows: Iterable[Row]) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
    """What the client library writes."""
    # Those that count nothing yet are named all the same.
    by_name: dict[str, list[Row]] = {m.name: [] for m in ROUTER_METRICS if m.kind is not Kind.GAUGE}
    for row in rows:
        by_name.setdefault(row[0], []).append(row)
    for name, found in sorted(by_name.items()):
        metric = _METRICS[name]
        if metric.kind is Kind.COUNTER:
            counter = CounterMetricFamily(name, metric.help, labels=metric.labels)
            for _, labels, numbers in found:
                counter.add_metric(labels, numbers[0])
            yield counter
        else:
            histogram = HistogramMetricFamily(name, metric.help, labels=metric.labels)
            bounds = [*(str(bound) for bound in metric.buckets), "+Inf"]
            for _, labels, numbers in found:
                buckets = [*zip(bounds, accumulate(numbers[:-1]), strict=True)]
                histogram.add_metric(labels, buckets, sum_value=numbers[-1])
            yield histogram


def _checked(metric: Metric, kind: Kind, labels: tuple[str, ...]) -> None:
    if metric.kind is not kind or len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} is a {metric.kind} with labels {metric.labels}, not {kind} {labels}")
