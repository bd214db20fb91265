"""What a process remembers of the workers' caches, and that it is bounded."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plait.router.placement.hashing import PrefixKeys
from plait.router.placement.memory import NOBODY, PrefixMemory


def chat(path: str, *, anchor: int | None = None, root: int = 0) -> PrefixKeys:
    """Keys of a conversation: a letter of `path` is a page, so paths that begin alike share pages."""
    blocks = tuple(hash(path[: i + 1]) & (2**64 - 1) for i in range(len(path)))
    return PrefixKeys(anchor or hash(("anchor", path[:2])) & (2**64 - 1), root, blocks)


def text(path: str) -> PrefixKeys:
    return chat(path, anchor=hash(("text", path)) & (2**64 - 1))._replace(half=(len(path) + 1) // 2)


def test_nothing_is_known_at_first() -> None:
    memory = PrefixMemory()
    assert memory.owners(chat("abc")) == NOBODY
    assert memory.matched(chat("abc"), 1) == 0
    assert len(memory) == 0


def test_matched_pages() -> None:
    memory = PrefixMemory()
    memory.note(chat("abcd"), 1, computed=4)
    memory.note(chat("ab"), 2, computed=2)
    for path, one, two in (("abcdef", 4, 2), ("abcx", 3, 2), ("ab", 2, 2), ("x", 0, 0), ("", 0, 0)):
        assert (memory.matched(chat(path), 1), memory.matched(chat(path), 2)) == (one, two)


def test_matched_pages_of_long_prompts() -> None:
    memory = PrefixMemory()
    keys = PrefixKeys(1, 2, tuple(range(100, 170)))
    memory.note(keys, 1, computed=0)
    assert memory.matched(keys, 1) == 64 + 6 * 16


def test_a_conversation_is_owned_by_who_has_most_of_it() -> None:
    memory = PrefixMemory()
    memory.note(chat("abcd"), 1, computed=4)
    memory.note(chat("abcdef"), 2, computed=6)
    assert memory.owners(chat("abcdefgh")) == ([2], True)
    assert memory.owners(chat("abcdxx")) == ([1, 2], True)


def test_what_conversations_share_makes_no_owner() -> None:
    memory = PrefixMemory()
    memory.note(chat("abcdefgh", anchor=1), 1, computed=8)
    assert memory.owners(chat("abcdefgx", anchor=2)) == NOBODY


def test_a_conversation_shorter_than_a_page_has_an_owner_too() -> None:
    memory = PrefixMemory()
    memory.note(PrefixKeys(7, 7), 3, computed=0)
    assert memory.owners(PrefixKeys(7, 7)) == ([3], True)


def test_half_of_a_prompt_without_messages_makes_an_owner() -> None:
    memory = PrefixMemory()
    memory.note(text("abcde"), 1, computed=5)
    assert memory.owners(text("abcdef")) == ([1], True)  # five of six
    assert memory.owners(text("abcdefghi")) == ([1], False)  # five of nine
    assert memory.owners(text("abcdefghijkl")) == NOBODY  # five of twelve
    assert memory.owners(text("abcxyz")) == ([1], False)
    assert memory.owners(text("abxyz")) == NOBODY


def test_kin_have_the_most_of_the_beginning() -> None:
    memory = PrefixMemory()
    memory.note(chat("abcdefgh", anchor=1), 1, computed=8)
    memory.note(chat("abcdefxy", anchor=2), 2, computed=2)
    assert memory.kin(chat("abcdefgz", anchor=3)) == [1]
    assert memory.kin(chat("abcdefzz", anchor=3)) == [1, 2]
    assert memory.kin(chat("abczzzzz", anchor=3)) == []  # three of eight pages are not worth it
    assert memory.kin(chat("abcz", anchor=3)) == [1, 2]  # three of four are
    assert memory.kin(PrefixKeys(3, 3)) == []


def test_forgotten_workers_own_nothing() -> None:
    memory = PrefixMemory()
    memory.note(chat("abc"), 1, computed=3)
    memory.note(chat("abc"), 2, computed=3)
    memory.forget(1)
    memory.forget(9)
    assert memory.owners(chat("abcd")) == ([2], True)
    assert memory.matched(chat("abc"), 1) == 0


def test_a_successor_inherits_nothing() -> None:
    memory = PrefixMemory(capacity=8)
    memory.note(chat("abc"), 1, computed=3)
    memory.forget(1)
    for worker in range(2, 200):
        memory.note(chat("xyz"), worker, computed=3)
        assert memory.matched(chat("abc"), worker) == 0
        memory.forget(worker)


def test_many_restarts_do_not_grow_it() -> None:
    memory = PrefixMemory()
    for worker in range(10_000):
        memory.note(chat("abc"), worker, computed=3)
        memory.forget(worker)
    memory.note(chat("abc"), 10_000, computed=3)
    assert max(bits.bit_length() for bits in memory._young.values()) <= 100
    assert memory.owners(chat("abc")) == ([10_000], True)


def test_what_is_not_noted_again_is_forgotten() -> None:
    memory = PrefixMemory(capacity=100)
    memory.note(chat("old"), 1, computed=3)
    memory.note(chat("kept"), 1, computed=4)
    for number in range(100):
        memory.note(PrefixKeys(number, 0, tuple(range(number * 10, number * 10 + 9))), 1, computed=9)
        memory.note(chat("kept"), 1, computed=0)
        assert len(memory) <= 200
    assert memory.matched(chat("old"), 1) == 0
    assert memory.matched(chat("kept"), 1) == 4


def test_another_workers_use_does_not_keep_mine() -> None:
    memory = PrefixMemory(capacity=100)
    memory.note(chat("abc"), 1, computed=3)
    for number in range(40):
        memory.note(PrefixKeys(number, 0, tuple(range(number * 10, number * 10 + 9))), 2, computed=9)
        memory.note(chat("abc"), 2, computed=0)
    assert memory.matched(chat("abc"), 1) == 0
    assert memory.matched(chat("abc"), 2) == 3


def test_a_prompt_longer_than_all_memory() -> None:
    memory = PrefixMemory(capacity=10)
    keys = PrefixKeys(1, 2, tuple(range(100, 150)))
    memory.note(keys, 1, computed=50)
    assert memory.matched(keys, 1) == 9
    assert len(memory) <= 20


def test_capacity_is_checked() -> None:
    with pytest.raises(ValueError, match="capacity = 1: give"):
        PrefixMemory(capacity=1)


# --- parts of the work -------------------------------------------------------------------------------------


def test_a_root_is_hot_when_its_prompts_are_too_many_for_one_worker() -> None:
    memory = PrefixMemory()
    drawn = random.Random(1)
    for _ in range(2_000):  # one kind has a tenth of all prompts
        root = 1 if drawn.random() < 0.1 else drawn.randrange(10, 10_000)
        memory.note(PrefixKeys(root, root), 1, computed=0)
    assert not memory.is_hot(PrefixKeys(0, 1), 2)  # a tenth is less than a quarter of a half
    assert memory.is_hot(PrefixKeys(0, 1), 4)
    assert not memory.is_hot(PrefixKeys(0, 55), 4)


def test_the_first_prompts_are_not_hot() -> None:
    memory = PrefixMemory()
    for number in range(3):
        memory.note(PrefixKeys(number, 1), 1, computed=0)
    assert not memory.is_hot(PrefixKeys(9, 1), 4)


def noted(memory: PrefixMemory, *workers: int, times: int, computed: int = 1) -> None:
    for _ in range(times):
        for worker in workers:
            memory.note(PrefixKeys(worker, worker), worker, computed=computed)


def test_who_is_ahead_in_requests() -> None:
    memory = PrefixMemory()
    noted(memory, 1, 2, 3, times=100, computed=0)
    assert memory.ahead([1, 2, 3]) == set()
    noted(memory, 3, times=50, computed=0)
    assert memory.ahead([1, 2, 3]) == {3}
    assert memory.ahead([1, 2]) == set()


def test_who_is_ahead_in_pages() -> None:
    memory = PrefixMemory()
    for _ in range(100):
        noted(memory, 1, 2, times=1, computed=2)
        noted(memory, 3, times=1, computed=40)
    assert memory.ahead([1, 2, 3]) == {3}


def test_a_newcomer_gets_no_rush() -> None:
    memory = PrefixMemory()
    noted(memory, 1, 2, times=100)
    assert memory.ahead([1, 2, 3]) == set()
    noted(memory, 3, times=1)
    assert memory.ahead([1, 2, 3]) == set()


def test_who_is_ahead_is_noticed_soon() -> None:
    memory = PrefixMemory()
    noted(memory, 1, 2, times=50)
    assert memory.ahead([1, 2]) == set()
    noted(memory, 2, times=50)
    assert memory.ahead([1, 2]) == {2}


# --- against a simple model --------------------------------------------------------------------------------


class Remembers(RuleBasedStateMachine):
    """While nothing was dropped, memory knows what a plain record of everything knows."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = PrefixMemory(capacity=100_000)
        self.sent: dict[int, set[str]] = {}
        self.next_id = 1

    @rule(path=st.text("ab", min_size=1, max_size=6), worker=st.integers(1, 4))
    def note(self, path: str, worker: int) -> None:
        self.memory.note(chat(path), worker, computed=1)
        self.sent.setdefault(worker, set()).add(path)

    @rule(worker=st.integers(1, 4))
    def forget(self, worker: int) -> None:
        self.memory.forget(worker)
        self.sent.pop(worker, None)

    def depth(self, path: str, worker: int) -> int:
        sent = self.sent.get(worker, set())
        return max((n for n in range(len(path) + 1) if any(s.startswith(path[:n]) for s in sent)), default=0)

    @invariant()
    def knows(self) -> None:
        for path in ("a", "ab", "abab", "bbbbbb", "aabbab"):
            depths = {worker: self.depth(path, worker) for worker in range(1, 5)}
            assert {w: self.memory.matched(chat(path), w) for w in depths} == depths
            knowing = {w for w, sent in self.sent.items() if any(s[:2] == path[:2] for s in sent)}
            deepest = max((depths[w] for w in knowing), default=0)
            owners = {w for w in knowing if depths[w] == deepest}
            assert set(self.memory.owners(chat(path)).workers) == owners


TestRemembers = Remembers.TestCase
TestRemembers.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
