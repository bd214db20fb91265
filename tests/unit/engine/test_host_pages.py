"""Page ids on the host are the device's, whatever the tree does, and nothing is copied back for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.engine import page_world
from tests.unit.engine.conftest import Place
from tests.unit.engine.page_world import World

from plait.contract.layouts import PAGE_SIZE, Layout, Split
from plait.contract.setting_kinds import Owners
from plait.engine.host_pages import HostPages, annotate, pages_of, path_pages, prefix_pages

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]


def world(place: Place, *, ranks: int = 2, pages: int = 48, chunk: int = 128, **chosen: object) -> World:
    from plait.engine.allocator import OwnedPageAllocator

    place.settings(layout=Layout.SHARED, **({"debug_checks": True} | chosen))
    place.at(0, ranks)
    allocator = OwnedPageAllocator(pages * PAGE_SIZE, PAGE_SIZE, torch.bfloat16, "cpu", "pool", True)
    return World(allocator, chunk=chunk, longest=40 * PAGE_SIZE, requests=8)


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    page_world.hooked(monkeypatch)
    return monkeypatch


class Life:
    """A scheduler's life by dice: prompts of a few families arrive, run in chunks, end or are aborted."""

    def __init__(self, world: World, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.world, self.patch, self.dice = world, patch, np.random.default_rng(seed)
        self.families = [self.dice.integers(0, 99, 9 * PAGE_SIZE).tolist() for _ in range(3)]
        self.sent: list[page_world.Request] = []
        self.arrivals = 0

    def prompt(self) -> list[int]:
        family = self.families[int(self.dice.integers(3))]
        common = int(self.dice.integers(0, len(family) + 1))
        own = self.dice.integers(100, 999, int(self.dice.integers(1, 150))).tolist()
        return [*family[:common], *own]

    def turn(self) -> None:
        world, dice = self.world, self.dice
        while world.free_slots and dice.random() < 0.5:
            world.arrive(f"r{self.arrivals}", self.prompt())
            self.arrivals += 1
        waiting = [req for req in world.live if not req.complete]
        batch = waiting[: int(dice.integers(1, 4))]
        for req in batch:
            if req.last_node is None:
                world.match(req)
        formed = world.form(batch) if batch else None
        if formed is not None:
            world.check()
            world.forward(formed, self.patch)
            for req in batch:
                world.cache(req)
                self.sent += [req] if req.complete else []
        else:
            self.drop(batch)
        for req in list(world.live):
            if req in self.sent and dice.random() < 0.4:
                self.sent.remove(req)
                world.finish(req, insert=dice.random() < 0.8)
        world.check()

    def drop(self, batch: list[page_world.Request]) -> None:
        """There is no room: requests that have run are aborted between chunks, the others wait anew."""
        for req in batch:
            if req.extend_range.end and len(req.prefix_indices):
                req.extend_range = SimpleNamespace(start=0, end=req.cache_protected_len)
            if getattr(req, "plait_row", None) is None:
                self.world.tree.dec_lock_ref(req.last_node)
                req.last_node, req.prefix_indices = None, torch.empty(0, dtype=torch.int64)
                req.cache_protected_len, req.extend_range = 0, SimpleNamespace(start=0, end=0)
            else:
                self.world.finish(req, insert=False)


@pytest.mark.parametrize("seed", range(12))
def test_the_host_knows_what_the_device_holds_and_asks_it_nothing(
    place: Place, hooked: pytest.MonkeyPatch, seed: int
) -> None:
    chosen = [
        {},
        {"split": Split.PAGE_ZIGZAG},
        {"test_owners": Owners.RANDOM},
        {"debug_checks": False},
    ][seed % 4]
    made = world(place, ranks=2 + 2 * (seed % 2), **chosen)
    copies = page_world.counted_copies(hooked)
    life = Life(made, seed, hooked)
    for _ in range(120):
        life.turn()
    assert life.arrivals > 30
    known = made.allocator.host_pages
    assert known.hits > 60
    assert known.misses == 0
    assert copies() == 0, "nothing but the debug checks asks the device"


def test_equal_prompts_in_one_batch_keep_the_trees_pages(place: Place, hooked: pytest.MonkeyPatch) -> None:
    """Both compute; the second one's pages are given back, and its row goes on with the first one's."""
    made = world(place, chunk=256)
    first, second = (made.arrive(name, list(range(200))) for name in "ab")
    for req in (first, second):
        made.match(req)
    made.forward(made.form([first, second]), hooked)  # type: ignore[arg-type]
    own = second.plait_row.copy()
    for req in (first, second):
        made.cache(req)
    made.check()
    assert second.plait_row[:3].tolist() == first.plait_row[:3].tolist() != own[:3].tolist()
    assert second.plait_row[3] == own[3] != first.plait_row[3], "the partial page is each request's own"


def test_a_split_node_is_two_nodes_with_their_parts(place: Place, hooked: pytest.MonkeyPatch) -> None:
    made = world(place, chunk=512)
    base = list(range(320))
    first = made.arrive("a", base)
    made.match(first)
    made.forward(made.form([first]), hooked)  # type: ignore[arg-type]
    made.cache(first)
    pages = first.plait_row.tolist()
    fork = made.arrive("b", [*base[:130], *range(1000, 1100)])
    made.match(fork)
    made.check()
    assert prefix_pages(fork).tolist() == pages[:2]  # type: ignore[union-attr]
    assert path_pages(first.last_node).tolist() == pages  # type: ignore[union-attr]


def test_a_prompts_chunks_are_one_run_in_each_lane_of_a_pool_with_holes(
    place: Place, hooked: pytest.MonkeyPatch
) -> None:
    """A hole that a chunk would just fill is left alone where the whole prompt fits elsewhere (growth), and
    every lane goes on where it ended (tail)."""
    ranks, rows = 4, np.array([2, 3, *range(8, 16)])
    made = world(place, ranks=ranks, pages=64, chunk=8 * PAGE_SIZE)
    allocator = made.allocator
    allocator.alloc(64 * PAGE_SIZE)
    allocator.pages.free((rows[:, None] * ranks + np.arange(ranks)).reshape(-1))
    req = made.arrive("a", list(range(16 * PAGE_SIZE)))
    made.match(req)
    while not req.complete:
        made.forward(made.form([req]), hooked)  # type: ignore[arg-type]
        made.cache(req)
    for lane in range(ranks):
        assert (req.plait_row[req.plait_row % ranks == lane] // ranks).tolist() == [8, 9, 10, 11]


class TestUnknown:
    def test_a_value_without_ids_makes_the_prefix_unknown_and_the_device_is_asked(
        self, place: Place, hooked: pytest.MonkeyPatch
    ) -> None:
        made = world(place)
        first = made.arrive("a", list(range(128)))
        made.match(first)
        made.forward(made.form([first]), hooked)  # type: ignore[arg-type]
        made.cache(first)
        node = first.last_node
        node.value = node.value.clone()  # as if another part of the engine had put it there
        fork = made.arrive("b", list(range(200)))
        made.match(fork)
        assert prefix_pages(fork) is None
        made.forward(made.form([fork]), hooked)  # type: ignore[arg-type]
        assert made.allocator.host_pages.misses == 1
        assert fork.plait_row is None
        made.cache(fork)
        assert made.allocator.available_size() < 48 * PAGE_SIZE
        made.finish(fork, insert=True)
        made.finish(first, insert=True)
        made.tree.evict(SimpleNamespace(num_tokens=10_000))
        assert made.allocator.available_size() == 48 * PAGE_SIZE, "pages come back from the device's ids"

    def test_prefixes_that_do_not_match_the_path(self) -> None:
        root = SimpleNamespace(parent=None, value=[])
        value = torch.arange(128)
        annotate(value, np.array([5, 6]))
        node = SimpleNamespace(parent=root, value=value)
        req = SimpleNamespace(prefix_indices=torch.arange(128), last_node=node)
        assert prefix_pages(req).tolist() == [5, 6]  # type: ignore[union-attr]
        for tokens in (64, 100, 192):
            req.prefix_indices = torch.arange(tokens)
            assert prefix_pages(req) is None
        req.prefix_indices = torch.arange(0)
        assert prefix_pages(req).tolist() == []  # type: ignore[union-attr]

    def test_without_a_tree_the_row_goes_on(self) -> None:
        req = SimpleNamespace(prefix_indices=torch.arange(128), last_node=None)
        assert prefix_pages(req) is None
        req.plait_row = np.array([7, 8, 9])
        assert prefix_pages(req).tolist() == [7, 8]  # type: ignore[union-attr]
        req.plait_row = np.array([7])
        assert prefix_pages(req) is None

    def test_ids_that_do_not_fit_the_value_are_not_noted(self) -> None:
        value = torch.arange(128)
        annotate(value, np.array([1, 2, 3]))
        annotate(value, None)
        annotate([], np.array([], dtype=np.int64))
        assert pages_of(value) is None

    @pytest.mark.parametrize(
        ("rids", "lengths"),
        [(["a"], [64, 65]), (["b", "a"], [64, 65]), (["a", "b"], [65, 65]), (None, [64, 65])],
    )
    def test_another_batch_than_the_one_formed(self, rids: Any, lengths: list[int]) -> None:
        known = HostPages()
        known.formed(["a", "b"], [np.array([3]), np.array([4, 5])])
        assert known.of_batch(rids, lengths) is None

    def test_a_batch_asks_once(self) -> None:
        known = HostPages()
        known.formed(["a", "b"], [np.array([3]), np.array([4, 5])])
        assert [one.tolist() for one in known.of_batch(["a", "b"], [64, 65]) or ()] == [[3], [4, 5]]
        assert known.of_batch(["a", "b"], [64, 65]) is None
        assert (known.hits, known.misses) == (2, 2)
        known.formed(["a"], [None])
        assert known.of_batch(["a"], [64]) is None


class TestDebugChecks:
    def test_a_row_that_differs_from_the_table_stops_the_engine(
        self, place: Place, hooked: pytest.MonkeyPatch
    ) -> None:
        made = world(place)
        req = made.arrive("a", list(range(128)))
        made.match(req)
        batch = made.form([req])
        assert batch is not None
        made.table[req.req_pool_idx, 64:128] += PAGE_SIZE
        with pytest.raises(RuntimeError, match="request 0: the host takes its pages for"):
            made.forward(batch, hooked)

    @pytest.mark.parametrize("start", [0, 64, 70])
    def test_freed_pages_that_differ(self, start: int) -> None:
        from plait.engine.allocator import _compare

        row = np.array([9, 4, 7])
        slots = torch.from_numpy((row[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1))[start:150]
        _compare(row[start // PAGE_SIZE :], slots, start)
        with pytest.raises(RuntimeError, match="freed pages"):
            _compare(row[start // PAGE_SIZE :] + 1, slots, start)
        with pytest.raises(RuntimeError, match="freed pages"):
            _compare(row[: start // PAGE_SIZE], slots, start)


def test_freeing_in_a_group_waits_for_its_end(place: Place) -> None:
    made = world(place, pages=8)
    allocator = made.allocator
    slots = allocator.alloc(3 * PAGE_SIZE)
    pages = (slots[::PAGE_SIZE] // PAGE_SIZE).numpy()
    annotate(slots, pages)
    allocator.free_group_begin()
    allocator.free_segment(slots, start_pos=0)
    assert allocator.available_size() == 5 * PAGE_SIZE
    allocator.free_group_end()
    assert allocator.available_size() == 8 * PAGE_SIZE
    allocator.free_segment(slots[:0], start_pos=0)
    with pytest.raises(ValueError, match="free already"):
        allocator.free_segment(slots, start_pos=0)
