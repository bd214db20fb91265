"""Counters of what this rank sent, per pair. Thread-safe: transfer workers write, the status thread reads."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class PairTotals(NamedTuple):
    """Totals to one peer since start."""

    peer: str
    pages: int
    bytes: int
    seconds: float
    failures: int


@dataclass
class _Pair:
    pages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    failures: int = 0


class TransferStats:
    """Bytes, seconds, pages and failures per decode session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pairs: dict[str, _Pair] = defaultdict(_Pair)

    def sent(self, peer: str, *, bytes: int, seconds: float, failed: bool) -> None:
        """One batch of blocks has ended."""
        with self._lock:
            pair = self._pairs[peer]
            pair.seconds += seconds
            if failed:
                pair.failures += 1
            else:
                pair.bytes += bytes

    def pages(self, peer: str, count: int) -> None:
        """`count` owned pages (MLA and index rows of all layers each) were handed to the transfer."""
        with self._lock:
            self._pairs[peer].pages += count

    def failed(self, peer: str) -> None:
        """A room failed before a byte was sent."""
        with self._lock:
            self._pairs[peer].failures += 1

    def totals(self) -> Sequence[PairTotals]:
        """A copy of all pairs, by peer."""
        with self._lock:
            return [
                PairTotals(peer, p.pages, p.bytes, p.seconds, p.failures)
                for peer, p in sorted(self._pairs.items())
            ]
