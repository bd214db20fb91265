"""Which worker has seen which prefix, as far as this process knows: it sent the requests itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Match(NamedTuple):
    """The longest known prefix of a prompt: `depth` blocks of it, and the workers that have seen them all."""

    depth: int
    workers: tuple[int, ...]


_SPARE_BITS = 64
NO_MATCH = Match(0, ())


class PrefixMemory:
    """Block hashes (`PrefixKeys.blocks`) and the workers that were sent them.

    Bounded: two generations of at most `capacity` hashes each (about 10 MB together at 32,768). What is not
    noted again is forgotten when the younger generation has filled up once or twice, as the engines' own
    caches forget what is not used. Worker ids are `View.id`s: never used again for another worker.
    """

    def __init__(self, capacity: int = 32_768) -> None:
        if capacity < 1:
            raise ValueError(f"capacity = {capacity}: give a number of hashes of at least 1")
        self._capacity = capacity
        # Hash -> set of workers, as bits. A prefix is noted as a whole and never split between generations
        # at once, so whoever has a block has all blocks before it: depths can be searched by halving.
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._turns = 0
        self._bits: dict[int, int] = {}
        self._free: list[tuple[int, int]] = []  # bit, first turn at which no hash holds it any more
        self._next_bit = 0

    def __len__(self) -> int:
        """Hashes held (one in both generations counts twice)."""
        return len(self._young) + len(self._old)

    def note(self, blocks: Sequence[int], worker: int) -> None:
        """The worker was sent a prompt with these blocks; it has, or will soon have, them cached."""
        if len(blocks) > self._capacity:
            blocks = blocks[: self._capacity]
        if len(self._young) + len(blocks) > self._capacity:
            self._turn()
        mark = self._bits.get(worker) or self._enter(worker)
        young = self._young
        for block in blocks:
            young[block] = young.get(block, 0) | mark

    def deepest(self, blocks: Sequence[int], among: Iterable[int]) -> Match:
        """The longest prefix that any worker of `among` has seen, and which of them have."""
        bits, mask = self._bits, 0
        seen = [(id, bit) for id in among if (bit := bits.get(id))]
        for _, bit in seen:
            mask |= bit
        depth, holders = self._search(blocks, mask)
        return Match(depth, tuple(id for id, bit in seen if bit & holders)) if depth else NO_MATCH

    def depth(self, blocks: Sequence[int], worker: int) -> int:
        """How many of `blocks`, from the first on, the worker has seen."""
        mark = self._bits.get(worker)
        return self._search(blocks, mark)[0] if mark else 0

    def forget(self, worker: int) -> None:
        """The worker is gone, or restarted with an empty cache. Costs nothing now: its hashes just age."""
        if mark := self._bits.pop(worker, 0):
            self._free.append((mark, self._turns + 2))

    def _search(self, blocks: Sequence[int], mask: int) -> tuple[int, int]:
        """Greatest depth at which a worker of `mask` is known, and those that are."""
        young, old = self._young, self._old
        low, high, holders = 0, len(blocks) if mask else 0, 0
        while low < high:
            middle = (low + high) // 2
            block = blocks[middle]
            if found := (young.get(block, 0) | old.get(block, 0)) & mask:
                low, holders = middle + 1, found
            else:
                high = middle
        return low, holders

    def _turn(self) -> None:
        self._old, self._young = self._young, {}
        self._turns += 1

    def _enter(self, worker: int) -> int:
        # A forgotten worker's bit may be in hashes still, which are not its successor's: it waits two turns.
        if self._free and self._free[0][1] <= self._turns:
            mark = self._free.pop(0)[0]
        else:
            if self._next_bit >= _SPARE_BITS + 4 * len(self._bits):
                # Workers restarted over and over: start anew, rather than let every hash's set grow.
                self._turn()
                self._turn()
                return self._enter(worker)
            mark = 1 << self._next_bit
            self._next_bit += 1
        self._bits[worker] = mark
        return mark
