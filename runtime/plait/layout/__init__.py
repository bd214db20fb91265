"""Pages: logical <-> (owner, physical), the page allocator, split plans and copy runs. No torch."""

from plait.layout.allocator import AllocatorSnapshot, PageAllocator, PageDemand
from plait.layout.pages import (
    Geometry,
    Int64Array,
    logical,
    owner,
    physical,
    slot_logical,
    slot_owner,
    slot_physical,
)
from plait.layout.runs import CopyRuns, FragmentCount, copy_runs, mean_run_length
from plait.layout.split import SplitPlan, SplitRequest

__all__ = [
    "AllocatorSnapshot",
    "CopyRuns",
    "FragmentCount",
    "Geometry",
    "Int64Array",
    "PageAllocator",
    "PageDemand",
    "SplitPlan",
    "SplitRequest",
    "copy_runs",
    "logical",
    "mean_run_length",
    "owner",
    "physical",
    "slot_logical",
    "slot_owner",
    "slot_physical",
]
