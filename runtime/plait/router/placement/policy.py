"""Policies: which of several workers takes a request, and which pair of them.

A worker at its limit is never chosen. One that was tried before for the same request, or that is suspect,
is chosen only when no other can be. Bounded load goes before locality: a worker that already has more than
its share of what is under way gets no request for the sake of its cache.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from plait.router.placement.hashing import PrefixKeys, pages_in
from plait.router.placement.memory import PrefixMemory
from plait.router.placement.rendezvous import key_of, weight
from plait.router.placement.views import View

V = TypeVar("V", bound=View)

# Load that any worker may have before its share is looked at, so that a quiet system does not scatter
# conversations for the sake of one request.
SLACK = 2
# A prefix within the anchor counts when it is so much of the prompt (a long document asked about anew).
_WORTH = 0.5
# Ranks of a free worker: usual, suspect, tried before.
_TRIED = 2
_RANKS = (0, 1, _TRIED)
_CHANCE = random.Random()


class Policy(StrEnum):
    """How a worker is chosen among those that can take a request."""

    PREFIX_AWARE = "prefix-aware"
    LEAST_LOAD = "least-load"
    ROUND_ROBIN = "round-robin"
    RANDOM = "random"


class Why(StrEnum):
    """What decided a choice; a metric label.

    `owner`: it has seen the prompt's prefix. `home`: first in the prompt's rendezvous order. `spill`: the
    owner or home had its share of load already. `sticky`: the client's sticky header (spill when its home
    was full). `policy`: load, turn or chance, as the policy says.
    """

    STICKY = "sticky"
    OWNER = "owner"
    HOME = "home"
    SPILL = "spill"
    POLICY = "policy"


class Chosen(NamedTuple, Generic[V]):
    """One worker, and why. `matched`: pages of the prompt's prefix that this process sent it before."""

    worker: V
    why: Why
    matched: int = 0


class Placement(NamedTuple, Generic[V]):
    """The two workers of a request. `why` and `matched` are prefill's; `pages`: whole pages of the prompt."""

    prefill: V
    decode: V
    why: Why
    matched: int
    pages: int


def choose(
    policy: Policy,
    views: Sequence[V],
    keys: PrefixKeys | None = None,
    memory: PrefixMemory | None = None,
    *,
    sticky: str | None = None,
    exclude: Collection[int] = (),
    bound: float = 1.25,
    rng: random.Random = _CHANCE,
) -> Chosen[V] | None:
    """The worker of `views` for a request, None when all are at their limits. Changes nothing.

    `sticky`: value of the client's sticky header, which goes before the policy. `exclude`: ids of workers
    tried before. `bound`: how many times the mean load a worker may have and still be chosen for its cache.
    """
    able = _best([v for v in views if v.in_flight < v.limit], exclude)
    return _choose(policy, able, keys, memory, sticky, bound, rng) if able else None


def choose_pair(
    policy: Policy,
    prefills: Sequence[V],
    decodes: Sequence[V],
    keys: PrefixKeys | None = None,
    memory: PrefixMemory | None = None,
    *,
    decode_policy: Policy = Policy.LEAST_LOAD,
    sticky: str | None = None,
    exclude: Collection[int] = (),
    bound: float = 1.25,
    rng: random.Random = _CHANCE,
) -> Placement[V] | None:
    """The pair for a request, None when no two workers of one wire contract can take it. Changes nothing.

    The prefill worker is chosen by `policy` among those for which a decode worker of the same wire contract
    is below its limit, that decode worker by `decode_policy`; `sticky` goes before both. Else as `choose`.
    """
    free_prefills = [v for v in prefills if v.in_flight < v.limit]
    free_decodes = [v for v in decodes if v.in_flight < v.limit]
    for worst in _RANKS:
        wires = {v.wire for v in free_decodes if (_TRIED if v.id in exclude else v.suspect) <= worst}
        wires.discard("")
        able = [
            v
            for v in free_prefills
            if v.wire in wires and (_TRIED if v.id in exclude else v.suspect) <= worst
        ]
        if able:
            break
    else:
        return None
    first = _choose(policy, _best(able, exclude), keys, memory, sticky, bound, rng)
    wire = first.worker.wire
    partners = _best([v for v in free_decodes if v.wire == wire], exclude)
    second = _choose(decode_policy, partners, keys, memory, sticky, bound, rng)
    pages = pages_in(len(keys.blocks)) if keys else 0
    return Placement(first.worker, second.worker, first.why, first.matched, pages)


def _best(free: list[V], exclude: Collection[int]) -> list[V]:
    """Those of the lowest rank present."""
    for worst in _RANKS:
        able = [v for v in free if (_TRIED if v.id in exclude else v.suspect) <= worst]
        if able:
            return able
    return []


def _choose(
    policy: Policy,
    able: list[V],
    keys: PrefixKeys | None,
    memory: PrefixMemory | None,
    sticky: str | None,
    bound: float,
    rng: random.Random,
) -> Chosen[V]:
    blocks = keys.blocks if keys is not None else ()
    if sticky is not None:
        worker, why = _near_home(able, key_of(sticky), _cap(able, bound), Why.STICKY)
    elif policy is Policy.PREFIX_AWARE and keys is not None:
        worker, why = _prefix_aware(able, keys, memory, _cap(able, bound))
    else:
        why = Why.POLICY
        if policy is Policy.ROUND_ROBIN:
            worker = min(able, key=_last_picked)
        elif policy is Policy.RANDOM:
            worker = rng.choice(able)
        else:
            worker = min(able, key=_load)
    return Chosen(worker, why, pages_in(memory.depth(blocks, worker.id)) if memory and blocks else 0)


def _prefix_aware(able: list[V], keys: PrefixKeys, memory: PrefixMemory | None, cap: float) -> tuple[V, Why]:
    blocks = keys.blocks
    if memory is not None and blocks:
        match = memory.deepest(blocks, [v.id for v in able])
        if _worth(match.depth, keys):
            owners = [v for v in able if v.load < cap and v.id in match.workers]
            if owners:
                # Equal owners: the one that everybody would take for this prompt.
                return _first(owners, keys.anchor), Why.OWNER
            under = [v for v in able if v.load < cap]
            match = memory.deepest(blocks, [v.id for v in under])
            if _worth(match.depth, keys):
                return _first([v for v in under if v.id in match.workers], keys.anchor), Why.SPILL
            worker, _ = _near_home(able, keys.anchor, cap, Why.HOME)
            return worker, Why.SPILL
    return _near_home(able, keys.anchor, cap, Why.HOME)


def _worth(depth: int, keys: PrefixKeys) -> bool:
    """Whether a known prefix of `depth` blocks decides, rather than the prompt's anchor."""
    return depth > keys.anchor_depth or (depth > 0 and pages_in(depth) >= _WORTH * pages_in(len(keys.blocks)))


def _near_home(able: list[V], key: int, cap: float, why: Why) -> tuple[V, Why]:
    """The first of the key's rendezvous order whose load is below `cap`."""
    home = _first(able, key)
    if home.load < cap:
        return home, why
    under = [v for v in able if v.load < cap]
    # None is under the cap only where loads are fractions.
    return (_first(under, key) if under else min(able, key=_load)), Why.SPILL


def _first(views: list[V], key: int) -> V:
    if len(views) == 1:
        return views[0]
    return max(views, key=lambda v: weight(key, v.seed))


def _cap(able: list[V], bound: float) -> float:
    """Load below which a worker may be chosen for its cache: so it stays within its bound of the mean."""
    total = sum([v.load for v in able])
    return max(SLACK, math.ceil(bound * (total + 1) / len(able)))


def _load(view: View) -> tuple[float, int]:
    return view.load, view.last_picked


def _last_picked(view: View) -> int:
    return view.last_picked
