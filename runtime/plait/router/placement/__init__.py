"""Which workers serve a request: prefix hashes, what workers have seen, rendezvous order, policies.

Pure: no clock, no network, no shared state. Every process of every replica makes the same choice from the
same request and equal loads; `PrefixMemory`, which each process has for itself, only refines it.
"""

from __future__ import annotations

from plait.router.placement.hashing import PrefixKeys, prefix_keys
from plait.router.placement.memory import PrefixMemory
from plait.router.placement.policy import Chosen, Placement, Policy, Why, choose, choose_pair
from plait.router.placement.views import View

__all__ = [
    "Chosen",
    "Placement",
    "Policy",
    "PrefixKeys",
    "PrefixMemory",
    "View",
    "Why",
    "choose",
    "choose_pair",
    "prefix_keys",
]
