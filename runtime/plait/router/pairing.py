"""Which prefill engines serve requests with which decode engines, and why the others serve none. Pure.

Only engines with equal, non-empty wire hashes are paired: with unequal contracts decode would read bytes
that mean something else, and nothing would say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Side(StrEnum):
    """The two legs of a request, and the engines that serve them."""

    PREFILL = "prefill"
    DECODE = "decode"


class Candidate(NamedTuple):
    """One engine as pairing sees it. `trouble`: why it cannot serve, empty when it can."""

    name: str
    side: Side
    wire_hash: str
    trouble: str


class Pair(NamedTuple):
    """Names of two engines that serve requests together."""

    prefill: str
    decode: str


def pairs(candidates: Sequence[Candidate]) -> list[Pair]:
    """All pairs that can serve now, in the order of the candidates."""
    able = [c for c in candidates if not c.trouble and c.wire_hash]
    return [
        Pair(p.name, d.name)
        for p in able
        if p.side is Side.PREFILL
        for d in able
        if d.side is Side.DECODE and d.wire_hash == p.wire_hash
    ]


def reasons(candidates: Sequence[Candidate]) -> dict[str, str]:
    """For each candidate by name, why it serves nothing; empty when it is part of a pair."""
    paired = {name for pair in pairs(candidates) for name in pair}
    return {c.name: "" if c.name in paired else _reason(c, candidates) for c in candidates}


def _reason(candidate: Candidate, candidates: Sequence[Candidate]) -> str:
    if candidate.trouble:
        return candidate.trouble
    if not candidate.wire_hash:
        return "its status names no contract (wire_hash is empty): start the engine with Plait's plugin on"
    other = Side.DECODE if candidate.side is Side.PREFILL else Side.PREFILL
    partners = [c for c in candidates if c.side is other]
    hashes = sorted({c.wire_hash[:12] for c in partners if not c.trouble and c.wire_hash})
    mine = candidate.wire_hash[:12]
    if hashes:
        return (
            f"no {other} engine has its contract {mine} (theirs: {', '.join(hashes)}): "
            f"start both sides with equal model, dtypes, page size and transfer backend"
        )
    return f"no {other} engine is ready"
