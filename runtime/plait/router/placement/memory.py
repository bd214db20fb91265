"""What this process knows of the workers' caches and of their part of the work, from what it sent them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plait.router.placement.hashing import PrefixKeys, pages_in
from plait.router.placement.shares import Shares

# Of how many recent requests the workers' parts are compared, and by how many usual requests one may be
# ahead of the others before prompts that are nobody's go elsewhere.
_WORK_WINDOW = 2_000
_AHEAD = 12
# Who is ahead changes slowly: it is worked out anew after so many requests.
_REFRESH = 8
# A root is hot when its part of the recent requests is above this part of what one worker gets.
_ROOT_WINDOW = 4_000
_HOT = 0.25
_ROOT_LEAST = 50

# A known prefix that is so much of a prompt makes an owner, where no conversation can be told.
_SURE = 0.8

# So many pages in common are worth going to who has them.
_KIN = 4

_SPARE_BITS = 64


class Owners(NamedTuple):
    """Workers that have a prompt's conversation cached, or if not `sure` maybe one that begins alike."""

    workers: Sequence[int]
    sure: bool


NOBODY = Owners((), False)


class PrefixMemory:
    """Which worker was sent which prefix, and how the recent work was spread. One per process; never shared.

    Bounded: two generations of at most `capacity` hashes each (about 10 MB together at 32,768). What is not
    noted again is forgotten when the younger generation has filled up once or twice, as the engines' own
    caches forget what is not used. Worker ids are `View.id`s: never used again for another worker.
    """

    def __init__(self, capacity: int = 32_768) -> None:
        if capacity < 2:
            raise ValueError(f"capacity = {capacity}: give a number of hashes of at least 2")
        self._capacity = capacity
        # Hash -> set of workers, as bits. A prefix is noted as a whole, within one generation, so whoever has
        # a block has all blocks before it: depths can be searched by halving.
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._turns = 0
        self._bits: dict[int, int] = {}
        self._known = 0  # all of `_bits`
        self._free: list[tuple[int, int]] = []  # a bit, and the turn at which no hash holds it any more
        self._next_bit = 0
        self._requests = Shares(_WORK_WINDOW)
        self._computed = Shares(_WORK_WINDOW)
        self._roots = Shares(_ROOT_WINDOW)
        self._notes = 0
        self._ahead: set[int] = set()
        self._ahead_of: Sequence[int] = ()
        self._ahead_at = 0

    def __len__(self) -> int:
        """Hashes held (one in both generations counts twice)."""
        return len(self._young) + len(self._old)

    def note(self, keys: PrefixKeys, worker: int, *, computed: int) -> None:
        """A prompt goes to the worker, which has `computed` pages of it to compute, and then caches it."""
        blocks = keys.blocks
        if len(blocks) >= self._capacity:
            blocks = blocks[: self._capacity - 1]
        if len(self._young) + len(blocks) >= self._capacity:
            self._turn()
        mark = self._bits.get(worker) or self._enter(worker)
        young = self._young
        for block in blocks:
            young[block] = young.get(block, 0) | mark
        young[keys.anchor] = young.get(keys.anchor, 0) | mark
        self._requests.add(worker)
        self._computed.add(worker, computed)
        self._roots.add(keys.root)
        self._notes += 1

    def owners(self, keys: PrefixKeys) -> Owners:
        """The workers that have most of this prompt's conversation cached."""
        holders = self._holders(keys.anchor, self._known)
        depth, found = self._search(keys.blocks, holders or self._known)
        if not holders and not 0 < keys.half <= depth:
            return NOBODY
        found = found or holders
        sure = bool(holders) or depth >= _SURE * len(keys.blocks)
        return Owners([id for id, bit in self._bits.items() if bit & found], sure)

    def kin(self, keys: PrefixKeys) -> list[int]:
        """The workers that have the most of the prompt's beginning, if that is worth anything."""
        depth, found = self._search(keys.blocks, self._known)
        if depth < min(_KIN, len(keys.blocks) // 2 or 1):
            return []
        return [id for id, bit in self._bits.items() if bit & found]

    def matched(self, keys: PrefixKeys, worker: int) -> int:
        """Pages of the prompt's prefix that the worker was sent before."""
        mark = self._bits.get(worker)
        return pages_in(self._search(keys.blocks, mark)[0]) if mark else 0

    def is_hot(self, keys: PrefixKeys, workers: int) -> bool:
        """Whether prompts with this root are too many for one of so many workers."""
        return self._roots.share(keys.root, least=_ROOT_LEAST) * workers > _HOT

    def ahead(self, workers: Sequence[int]) -> set[int]:
        """Those of `workers` that got clearly more than the others of late, in requests or in pages."""
        if self._notes - self._ahead_at >= _REFRESH or self._ahead_of != workers:
            usual = self._computed.total / max(self._requests.total, 1.0)
            self._ahead = self._requests.above_mean(workers, _AHEAD)
            self._ahead |= self._computed.above_mean(workers, _AHEAD * usual)
            self._ahead_of, self._ahead_at = workers, self._notes
        return self._ahead

    def forget(self, worker: int) -> None:
        """The worker is gone, or restarted with an empty cache. Costs nothing now: its hashes just age."""
        if mark := self._bits.pop(worker, 0):
            self._known ^= mark
            self._free.append((mark, self._turns + 2))
            self._requests.drop(worker)
            self._computed.drop(worker)

    def _holders(self, hash: int, mask: int) -> int:
        return (self._young.get(hash, 0) | self._old.get(hash, 0)) & mask

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
        self._known |= mark
        self._requests.start(worker)
        self._computed.start(worker)
        return mark
