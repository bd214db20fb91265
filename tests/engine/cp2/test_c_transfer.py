"""Decode holds the dense bytes, and the negative controls that show that these tests can fail."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from harness.ask import Pair, ask_pair, prompt
from harness.compare import same_bits
from harness.engines import Engine

pytestmark = pytest.mark.stack


def digests(engine: Engine, role: str, room: int) -> dict[str, str]:
    """Digest of each page of a room by position, over all ranks of an engine."""
    assert engine.state is not None
    found: dict[str, str] = {}
    deadline = time.time() + 10
    ranks = len(engine.status()["ranks"])
    files = [engine.state / f"pages-{role}-{rank}-{room}.json" for rank in range(ranks)]
    while not all(Path(file).exists() for file in files):
        assert time.time() < deadline, f"{engine.name} recorded no pages of room {room}"
        time.sleep(0.05)
    for file in files:
        found |= json.loads(file.read_text())
    return found


def both(cp2, tokens: int, seed: int) -> tuple[Pair, Pair]:
    """The same cold prompt through both groups, into the same decode engine."""
    ids = prompt(tokens, seed)
    return (
        ask_pair(cp2.shared, cp2.decode, [ids])[0],
        ask_pair(cp2.replicated, cp2.decode, [ids])[0],
    )


@pytest.mark.parametrize("tokens", [1, 64, 65, 300, 700])
def test_decode_holds_the_dense_bytes(cp2, tokens: int) -> None:
    ours, theirs = both(cp2, tokens, 2000 + tokens)
    expected = digests(cp2.replicated, "prefill", theirs.room)
    assert len(expected) == -(-tokens // 64)
    assert digests(cp2.shared, "prefill", ours.room) == expected, "each page lies with its owner"
    assert digests(cp2.decode, "decode", ours.room) == expected, "decode got other bytes"
    assert digests(cp2.decode, "decode", theirs.room) == expected


def test_every_rank_sends_what_it_owns(cp2) -> None:
    """Pages by rank and pair, and ranks without a page report too (a prompt of one page has one owner)."""
    before = cp2.shared.ranks()
    ask_pair(cp2.shared, cp2.decode, [prompt(20, 77)])
    ask_pair(cp2.shared, cp2.decode, [prompt(320, 78)])
    after = cp2.shared.ranks()
    sent = [
        new["transfer"]["pages"] - old["transfer"]["pages"] for old, new in zip(before, after, strict=True)
    ]
    assert sum(sent) == 1 + 5
    assert all(count >= 2 for count in sent)
    assert all(new["transfer"]["failures"] == 0 for new in after)


@pytest.mark.parametrize("fault", ["shift-mla", "shift-index", "swap-owners"])
def test_negative_control_of_equality(cp2, fault: str) -> None:
    """A rank's rows one token off, or two pages in each other's place: the comparison must fail."""
    cp2.fault.write_text(fault)
    ours, theirs = both(cp2, 700, 3000)
    with pytest.raises(AssertionError):
        same_bits(ours.decode, theirs.decode, what=fault)


@pytest.mark.parametrize("fault", ["drop-page", "swap-owners"])
def test_negative_control_of_bytes(cp2, fault: str) -> None:
    """A page that was not sent, or lies in another's place: decode's bytes must differ."""
    both(cp2, 700, 3001)  # decode's pages hold something else first
    cp2.fresh()
    cp2.fault.write_text(fault)
    ours, theirs = both(cp2, 700, 3002)
    assert digests(cp2.decode, "decode", ours.room) != digests(cp2.replicated, "prefill", theirs.room)
