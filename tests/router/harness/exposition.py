"""Prometheus' text format, read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families


class Series(NamedTuple):
    """One time series of a scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


class Scrape:
    """One answer of `/metrics`, parsed as it is asked for: tests take thousands, and look at few names."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._parsed: dict[str, list[Series]] = {}

    def select(self, name: str, **labels: str) -> list[Series]:
        """The series of `name` that carry these labels."""
        series = self._parsed.get(name)
        if series is None:
            series = self._parsed[name] = self._parse(name)
        return [s for s in series if all(s.labels.get(k) == v for k, v in labels.items())]

    def total(self, name: str, **labels: str) -> float:
        """Their sum, 0 where there is none."""
        return sum(s.value for s in self.select(name, **labels))

    def _parse(self, name: str) -> list[Series]:
        text = "\n".join(line for line in self._lines if line.startswith(name))
        return [
            Series(sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text + "\n")
            for sample in family.samples
            if sample.name == name
        ]
