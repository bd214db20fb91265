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
    """All series of one answer of `/metrics`."""

    def __init__(self, text: str) -> None:
        self.series = [
            Series(sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def select(self, name: str, **labels: str) -> list[Series]:
        """The series of `name` that carry these labels."""
        return [
            s for s in self.series if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())
        ]

    def total(self, name: str, **labels: str) -> float:
        """Their sum, 0 where there is none."""
        return sum(s.value for s in self.select(name, **labels))
