"""Policies: which of several workers takes a request, and which pair of them.

A worker at its limit is never chosen. One that was tried before for the same request, or that is suspect,
is chosen only when no other can be. Bounded load goes before locality: a worker that already has more than
its share of what is under way gets no request for the sake of its cache.
"""

from __future__ import annotations

import math
import operator
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
# conversations for the sake of a few requests.
SLACK = 4
# A worker that has the prompt's beginning may have so many times the load that another may have.
_KNOWN = 2
# Pages to compute that are worth a usual request.
_WORK_PAGES = 64
# Ranks of a free worker: usual, suspect, tried before.
_USUAL, _SUSPECT, _TRIED = _RANKS = (0, 1, 2)
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

    @property
    def computed(self) -> int:
        """Pages that prefill will probably have to compute."""
        return self.pages - self.matched

    @property
    def work(self) -> float:
        """What it adds to the load of the prefill worker, in usual requests."""
        return 1 + self.computed / _WORK_PAGES


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
    able = _best(views, exclude)
    if not able:
        return None
    worker, why = _choose(policy, able, keys, memory, sticky, bound, rng)
    return Chosen(worker, why, _matched(worker, keys, memory))


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
    for worst in _RANKS:
        partners = _free(decodes, exclude, worst)
        wires = {v.wire for v in partners}
        able = [v for v in _free(prefills, exclude, worst) if v.wire and v.wire in wires]
        if able:
            break
    else:
        return None
    if worst != _USUAL:
        # Not both sides need the lower rank.
        able, partners = _best(able, exclude), list(decodes)
    prefill, why = _choose(policy, able, keys, memory, sticky, bound, rng)
    wire = prefill.wire
    partners = [v for v in partners if v.wire == wire]
    if worst != _USUAL:
        partners = _best(partners, exclude)
    # What decode engines have cached is not remembered: there prefix-aware is the prompt's home.
    decode, _ = _choose(decode_policy, partners, keys, None, sticky, bound, rng)
    pages = pages_in(len(keys.blocks)) if keys is not None else 0
    return Placement(prefill, decode, why, _matched(prefill, keys, memory), pages)


def _free(views: Sequence[V], exclude: Collection[int], worst: int) -> list[V]:
    """Those below their limit whose rank is not beyond `worst`."""
    if worst == _USUAL:
        return [v for v in views if v.in_flight < v.limit and not v.suspect and v.id not in exclude]
    if worst == _SUSPECT:
        return [v for v in views if v.in_flight < v.limit and v.id not in exclude]
    return [v for v in views if v.in_flight < v.limit]


def _best(views: Sequence[V], exclude: Collection[int]) -> list[V]:
    """Those below their limit of the lowest rank present."""
    return next(filter(None, (_free(views, exclude, worst) for worst in _RANKS)), [])


def _choose(
    policy: Policy,
    able: list[V],
    keys: PrefixKeys | None,
    memory: PrefixMemory | None,
    sticky: str | None,
    bound: float,
    rng: random.Random,
) -> tuple[V, Why]:
    if sticky is not None:
        return _near_home(able, key_of(sticky), _cap(able, bound), Why.STICKY)
    if policy is Policy.PREFIX_AWARE and keys is not None:
        return _prefix_aware(able, keys, memory, _cap(able, bound))
    if policy is Policy.ROUND_ROBIN:
        return min(able, key=_last_picked), Why.POLICY
    if policy is Policy.RANDOM:
        return rng.choice(able), Why.POLICY
    return _least(able), Why.POLICY


def _prefix_aware(able: list[V], keys: PrefixKeys, memory: PrefixMemory | None, cap: float) -> tuple[V, Why]:
    if memory is None:
        return _near_home(able, keys.anchor, cap, Why.HOME)
    ahead = memory.ahead([v.id for v in able])
    ids, sure = memory.owners(keys)
    if ids:
        # Equal owners: the one that everybody would take for this prompt.
        if near := _under(able, ids, () if sure else ahead, cap):
            return _first(near, keys.anchor), Why.OWNER
        why = Why.SPILL
    else:
        why = Why.HOME
    # Prompts of one kind belong together, unless they are too many for one worker.
    key = keys.anchor if memory.is_hot(keys, len(able)) else keys.root
    home, kin = _first(able, key), memory.kin(keys)
    if home.id not in ahead and home.load < (_KNOWN * cap if home.id in kin else cap):
        return home, why
    if near := _under(able, kin, ahead, cap):
        return _first(near, key), Why.SPILL
    behind = [v for v in able if v.id not in ahead]
    return _near_home(behind or able, key, cap, Why.SPILL)[0], Why.SPILL


def _under(able: list[V], ids: Collection[int], ahead: Collection[int], cap: float) -> list[V]:
    """Those of `ids` that may take more; those that have more than others may only where no other is."""
    known = [v for v in able if v.id in ids and v.id not in ahead]
    return [v for v in known if v.load < cap] or [v for v in known if v.load < _KNOWN * cap]


def _near_home(able: list[V], key: int, cap: float, why: Why) -> tuple[V, Why]:
    """The first of the key's rendezvous order whose load is below `cap`."""
    home = _first(able, key)
    if home.load < cap:
        return home, why
    under = [v for v in able if v.load < cap]
    # None is under the cap only where loads are fractions.
    return (_first(under, key) if under else _least(able)), Why.SPILL


def _first(views: list[V], key: int) -> V:
    """The first of `views` in the key's rendezvous order."""
    if len(views) == 1:
        return views[0]
    weights = [weight(v.seed, key) for v in views]
    return views[weights.index(max(weights))]


def _least(views: list[V]) -> V:
    """The least loaded, of equals the one picked longest ago."""
    lowest = min([v.load for v in views])
    equals = [v for v in views if v.load == lowest]
    return equals[0] if len(equals) == 1 else min(equals, key=_last_picked)


def _cap(able: list[V], bound: float) -> float:
    """Load below which a worker may be chosen for its cache: so it stays within its bound of the mean."""
    total = sum([v.load for v in able])
    return max(SLACK, math.ceil(bound * (total + 1) / len(able)))


def _matched(worker: View, keys: PrefixKeys | None, memory: PrefixMemory | None) -> int:
    return memory.matched(keys, worker.id) if memory is not None and keys is not None else 0


_last_picked = operator.attrgetter("last_picked")
