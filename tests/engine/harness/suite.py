"""The comparison of layouts over all the shapes that matter, for one configuration of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from harness.ask import Prompt, prompt
from harness.engines import Engine
from harness.layouts import equal_on_both

LENGTHS = (1, 5, 63, 64, 65, 127, 128, 300, 301, 1900)


class Groups(NamedTuple):
    """A shared and a replicated prefill group that send to the same decode engine.

    chunk: tokens of both groups' batches. A request takes whole pages of it, so `chunk // 64` requests of up
    to a page share a batch. More would make a second one, whose owners depend on which pages the first
    batch's transfers have freed by then.
    """

    shared: Engine
    replicated: Engine
    decode: Engine
    chunk: int

    @property
    def together(self) -> int:
        """Short requests that share a batch."""
        return self.chunk // 64

    def fresh(self) -> None:
        """Empty caches."""
        self.shared.flush()
        self.replicated.flush()

    def equal(self, prompts: list[Prompt], *, what: str, new: int = 8) -> list[int]:
        """Assert that both layouts answer `prompts` equally; the cached tokens of each."""
        ours, _ = equal_on_both(self.shared, self.replicated, self.decode, prompts, what=what, new=new)
        return [pair.prefill.cached for pair in ours]


def single_prompts(groups: Groups) -> None:
    """Every length, cold."""
    for tokens in LENGTHS:
        assert groups.equal([prompt(tokens, tokens)], what=f"{tokens} tokens") == [0]


def mixed_batches(groups: Groups) -> None:
    """Several requests in a batch, with and without prefixes, some ranks without rows of some requests."""
    many = groups.together
    groups.equal([prompt(n, 7 * n) for n in (5, 63, 40)[:many]], what="mixed")
    groups.equal([prompt(1, s) for s in range(many)], what="one token each")
    base = prompt(450, 99)
    groups.equal([base], what="base")
    forks = [base[:128] + prompt(20, 1), prompt(9, 2), base[:384] + prompt(33, 3)][:many]
    assert groups.equal(forks, what="mixed with prefixes") == [128, 0, 384][:many]


def partial_pages(groups: Groups) -> None:
    """Common prefixes that end inside a page are rounded down."""
    base = prompt(400, 5)
    groups.equal([base], what="base")
    for into in (0, 1, 31, 63):
        common = 192 + into
        fork = [*base[:common], (base[common] + 1) % 500, *prompt(80, common)]
        assert groups.equal([fork], what=f"{into} into a page") == [192]


def whole_pages(groups: Groups) -> None:
    """Hits of 0..6 whole pages."""
    base = prompt(450, 6)
    groups.equal([base], what="base")
    for pages in range(7):
        ids = base[: pages * 64] + prompt(70, 60 + pages)
        assert groups.equal([ids], what=f"{pages} pages") == [pages * 64]


def eviction(groups: Groups) -> None:
    """Prompts over the pool's size, one after the other: the pool fills up, both layouts evict alike, and all
    answers are equal."""
    for seed in range(5):
        groups.equal([prompt(1900, 500 + seed)], what=f"evicting {seed}", new=2)
    ranks = groups.shared.ranks()
    held = sum(rank["pages"]["used"] for rank in ranks)
    # Eviction makes room for one chunk at a time, so a full pool stays full but for that.
    assert held >= sum(rank["pages"]["owned"] for rank in ranks) * 7 // 8
    for rank in groups.shared.account():
        assert rank["faults"] == []


def prompt_logprobs(groups: Groups) -> None:
    """Logprobs of prompt tokens are read from rows that the narrow tail leaves out: such batches are given
    the full one, and the others (earlier chunks among them) the narrow one."""
    ids = prompt(groups.chunk + 100, 77)
    for start, narrow in ((0, [False, False]), (groups.chunk + 50, [True, False]), (-1, [True, True])):
        groups.fresh()
        before = len(groups.shared.forwards())
        ours, theirs = equal_on_both(
            groups.shared, groups.replicated, groups.decode, [ids], what=f"from {start}", logprobs_from=start
        )
        assert ours[0].prefill.prompt == theirs[0].prefill.prompt
        assert len(ours[0].prefill.prompt) == (len(ids) - start if start >= 0 else 0)
        assert [one["narrow"] for one in groups.shared.forwards()[before:]] == narrow
        assert not any(one["narrow"] for one in groups.replicated.forwards()), "the reference gathers all"


def host_pages(groups: Groups) -> None:
    """All that was asked so far found its page ids on the host, and the debug checks compared each of them
    with the device's, in every forward and for every page that was freed."""
    ids = prompt(700, 31)
    groups.equal([ids], what="chunks")
    groups.equal([ids[:320] + prompt(90, 32)], what="a fork")
    for engine in (groups.shared, groups.replicated):
        hits, misses = engine.forwards()[-1]["host_pages"]
        assert hits >= 5
        assert misses == 0


def parts() -> Iterator[tuple[str, Callable[[Groups], None]]]:
    """The suite, by name."""
    for part in (
        single_prompts,
        mixed_batches,
        partial_pages,
        whole_pages,
        eviction,
        prompt_logprobs,
        host_pages,
    ):
        yield part.__name__, part
