"""Prefill -> decode: every rank sends the pages it owns with their logical positions."""

from plait.transfer.fence import AckFence, SendFence
from plait.transfer.plan import OwnedPages, destination_fault, owned_pages
from plait.transfer.stats import PairTotals, TransferStats

__all__ = [
    "AckFence",
    "OwnedPages",
    "PairTotals",
    "SendFence",
    "TransferStats",
    "destination_fault",
    "owned_pages",
]
