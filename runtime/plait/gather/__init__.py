"""The dense view that attention reads: prefix and chunk, rebuilt layer by layer from the owners' pages."""

from plait.gather.exchange import CollectiveExchange, Exchange, Fetch, PartIndex, Pending
from plait.gather.pages import page_rows
from plait.gather.plan import GatherPlan, GatherRequest, PartPlan, pages_needed
from plait.gather.scratch import Scratch, ScratchShape
from plait.gather.trace import trace_for
from plait.gather.view import DenseView, GatherStats

__all__ = [
    "CollectiveExchange",
    "DenseView",
    "Exchange",
    "Fetch",
    "GatherPlan",
    "GatherRequest",
    "GatherStats",
    "PartIndex",
    "PartPlan",
    "Pending",
    "Scratch",
    "ScratchShape",
    "page_rows",
    "pages_needed",
    "trace_for",
]
