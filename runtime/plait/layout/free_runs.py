"""Free physical pages of one lane (the pages that one rank owns), kept as runs of consecutive pages.

Long runs matter because one copy-engine command moves one run: a sequence whose pages lie apart costs a
command per page. Three rules keep runs long:
- a sequence goes on right after its last page in the lane while that page is free;
- otherwise the smallest free run that holds all it needs now and is expected to need later is used;
- a sequence that is known to grow no more is placed at the END of its run, so that the pages right after a
  growing sequence, which begins at the START of one, stay free for it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plait.layout.pages import Int64Array


class FreeRuns:
    """Run table over one lane's free bitmap.

    free: bool [physical pages], True = free. Shared with the allocator: `take` clears bits here, whoever
    changes the bitmap otherwise must call `forget`.
    """

    def __init__(self, free: npt.NDArray[np.bool_]) -> None:
        self._free = free
        self._starts: Int64Array | None = None
        self._lengths: Int64Array = np.empty(0, dtype=np.int64)

    def forget(self) -> None:
        """The bitmap was changed from outside: rebuild the table at the next `take`."""
        self._starts = None

    def table(self) -> tuple[Int64Array, Int64Array]:
        """Starts (ascending) and lengths of the free runs, np.int64 [runs] each; lengths may be 0."""
        if self._starts is None:
            padded = np.zeros(len(self._free) + 2, dtype=np.int8)
            padded[1:-1] = self._free
            edges = np.flatnonzero(padded[1:] != padded[:-1])
            self._starts = edges[0::2].copy()
            self._lengths = edges[1::2] - self._starts
        return self._starts, self._lengths

    def take(self, count: int, *, after: int | None, growth: int | None) -> Int64Array:
        """Take `count` pages (at most the free ones) and return them, np.int64 [count], in sequence order.

        after: the sequence's last page in this lane, None if it has none.
        growth: pages that the sequence will want in this lane later; None if unknown (taken as: it may grow).
        """
        starts, lengths = self.table()
        pieces: list[Int64Array] = []
        wanted = count
        if after is not None and after + 1 < len(self._free) and self._free[after + 1]:
            # `after` is in use, so its free neighbour is always the first page of a run.
            run = int(np.searchsorted(starts, after + 1))
            got = min(wanted, int(lengths[run]))
            pieces.append(self._cut(run, got, at_end=False))
            wanted -= got
        if wanted:
            at_end = growth == 0
            pieces.extend(self._best_fit(wanted, wanted + (growth or 0), at_end=at_end))
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _best_fit(self, count: int, ideal: int, *, at_end: bool) -> list[Int64Array]:
        """`count` pages from the smallest run of at least `ideal`, else from the largest runs."""
        _, lengths = self.table()
        # One pass over the table: lengths below the wish become huge, so argmin finds the smallest that fits.
        never = len(self._free) + 1
        fits = np.where(lengths >= ideal, lengths, never)
        run = int(fits.argmin())
        if fits[run] < never:
            return [self._cut(run, count, at_end=at_end)]
        run = int(lengths.argmax())
        if lengths[run] >= count:
            return [self._cut(run, count, at_end=at_end)]
        # No single run is enough: whole largest runs, and the rest from the smallest that fits it.
        order = np.argsort(-lengths, kind="stable")
        whole = int(np.searchsorted(np.cumsum(lengths[order]), count, side="right"))
        chosen = np.sort(order[:whole])
        pieces = [self._cut_whole(chosen)]
        rest = count - len(pieces[0])
        if rest:
            pieces.extend(self._best_fit(rest, rest, at_end=at_end))
        return pieces

    def _cut(self, run: int, count: int, *, at_end: bool) -> Int64Array:
        starts, lengths = self.table()
        first = int(starts[run])
        if at_end:
            first += int(lengths[run]) - count
        else:
            starts[run] += count
        lengths[run] -= count
        self._free[first : first + count] = False
        return np.arange(first, first + count, dtype=np.int64)

    def _cut_whole(self, runs: Int64Array) -> Int64Array:
        starts, lengths = self.table()
        sizes = lengths[runs]
        before = np.cumsum(sizes) - sizes
        pages = np.repeat(starts[runs] - before, sizes) + np.arange(int(sizes.sum()), dtype=np.int64)
        self._free[pages] = False
        lengths[runs] = 0
        return pages
