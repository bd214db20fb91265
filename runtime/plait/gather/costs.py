"""What moving costs on this host: the numbers that the policy compares. Pure; measured in `measure`."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from plait.gather.runs import RunLimits

_GB_PER_S_BYTES_PER_US = 1e3
MOST_RUNS = 32
"""Copies per layer and kind: about 0.1 ms of host time, of the 1 to 2 ms that a layer takes."""


class CostRow(NamedTuple):
    """One number of a table in words, for `plait doctor`."""

    name: str
    value: float
    unit: str
    means: str


def _cost(unit: str, means: str) -> dict[str, str]:
    return {"unit": unit, "means": means}


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """Times in us; speeds in GB/s of bytes that come from other ranks, per rank, all ranks at once.

    Raises ValueError for a number that is not finite and positive (shares: from 0 to 1).
    """

    source: str = field(metadata=_cost("", "where the numbers come from"))
    copy_start_us: float = field(metadata=_cost("us", "copy engines: fork, start and join of one gather"))
    copy_call_us: float = field(metadata=_cost("us", "copy engines: one more run"))
    copy_gbps: float = field(metadata=_cost("GB/s", "copy engines"))
    copy_share: float = field(metadata=_cost("", "copy engines: part of their time that compute loses"))
    pull_start_us: float = field(metadata=_cost("us", "pull kernel: one launch on a stream of its own"))
    pull_gbps: float = field(metadata=_cost("GB/s", "pull kernel"))
    pull_share: float = field(metadata=_cost("", "pull kernel: part of its time that compute loses"))
    collective_start_us: float = field(metadata=_cost("us", "all-gather with packing and placing"))
    collective_gbps: float = field(metadata=_cost("GB/s", "all-gather with packing and placing"))
    collective_share: float = field(metadata=_cost("", "all-gather: part of its time that compute loses"))
    barrier_us: float = field(metadata=_cost("us", "one barrier of all ranks"))
    direct_gbps: float = field(metadata=_cost("GB/s", "attention that reads other ranks' rows in place"))
    layer_start_us: float = field(metadata=_cost("us", "compute of a layer with hardly any rows"))
    layer_row_us: float = field(metadata=_cost("us", "compute of a layer: one more query row of a rank"))

    def __post_init__(self) -> None:
        for name, value in self.numbers().items():
            share = name.endswith("_share")
            fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not fine or (not 0 <= value <= 1 if share else value <= 0):
                allowed = "a share from 0 to 1" if share else "a positive number"
                raise ValueError(f"CostTable.{name} is {value!r}: give {allowed}")

    def numbers(self) -> dict[str, float]:
        """All but `source`."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "source"}

    # What moving `nbytes` from other ranks takes, in `launches` gathers of one kind each.

    def copy_us(self, launches: int, *, runs: int, nbytes: float) -> float:
        """By the copy engines, in `runs` copies altogether."""
        return launches * self.copy_start_us + runs * self.copy_call_us + _us(nbytes, self.copy_gbps)

    def pull_us(self, launches: int, nbytes: float) -> float:
        """By the pull kernel."""
        return launches * self.pull_start_us + _us(nbytes, self.pull_gbps)

    def pull_on_us(self, nbytes: float) -> float:
        """`nbytes` more in a pull that is launched in any case."""
        return _us(nbytes, self.pull_gbps)

    def collective_us(self, launches: int, nbytes: float) -> float:
        """By all-gathers."""
        return launches * self.collective_start_us + _us(nbytes, self.collective_gbps)

    def direct_us(self, nbytes: float) -> float:
        """`nbytes` read from other ranks in the middle of attention."""
        return _us(nbytes, self.direct_gbps)

    def layer_us(self, rows: int) -> float:
        """Compute of one layer with `rows` query rows on a rank: what a prefetch can hide behind."""
        return self.layer_start_us + rows * self.layer_row_us

    def run_limits(self) -> RunLimits:
        """A run is worth a copy of its own if the kernel would take longer for it than the copy's call."""
        least = self.copy_call_us * self.pull_gbps * _GB_PER_S_BYTES_PER_US
        return RunLimits(least_bytes=round(least), most_runs=MOST_RUNS)

    def to_json(self) -> str:
        """The table as JSON text; `from_json` reads it back equal."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> CostTable:
        """A table from JSON text. Raises ValueError that names what is missing, unknown or bad."""
        given: Any = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError("a cost table is a JSON object")
        names = {f.name for f in fields(cls)}
        if wrong := sorted(names ^ set(given)):
            raise ValueError(f"a cost table has {', '.join(sorted(names))}; missing or unknown: {wrong}")
        return cls(**given)

    def describe(self) -> list[CostRow]:
        """Every number in words."""
        return [
            CostRow(f.name, getattr(self, f.name), f.metadata["unit"], f.metadata["means"])
            for f in fields(self)
            if f.name != "source"
        ]


def _us(nbytes: float, gbps: float) -> float:
    return nbytes / (gbps * _GB_PER_S_BYTES_PER_US)


H200 = CostTable(
    source="shipped: 4 x H200, 18 NVLinks, FP8 rows of 656 bytes, 128K and 512K tokens",
    # 0.31 ms at 128K and 0.92 ms at 512K, of which some is the host's; 62 us lost beside compute.
    copy_start_us=40.0,
    copy_call_us=3.0,
    copy_gbps=317.0,
    copy_share=0.20,
    # 0.24 ms and 0.84 ms; 124 to 198 us lost.
    pull_start_us=40.0,
    pull_gbps=322.0,
    pull_share=0.6,
    # Packed, gathered and placed: 0.54 ms and 1.30 ms; the all-gather alone loses 160 us of 340.
    collective_start_us=100.0,
    collective_gbps=255.0,
    collective_share=0.47,
    barrier_us=8.0,
    # FlashMLA over mapped memory, top-k 2048 of bf16 rows: 5.6 ms instead of 0.63 for 1024 query rows.
    direct_gbps=364.0,
    # A layer of GLM-5's shape: 1.84 ms with 2048 rows.
    layer_start_us=250.0,
    layer_row_us=0.78,
)
"""Where nothing was measured. Order of magnitude on other hosts; `measure` replaces all but the shares, the
direct reads and the layer."""
