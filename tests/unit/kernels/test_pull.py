"""Pull kernels: every page and row where the lists say, and no byte elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.kernels import interpreter  # noqa: F401
from tests.unit.kernels.guarded import POISON, Guarded, PeerBytes, peer_bytes, same_bytes

from plait.kernels.pull import CONFIGS, PullConfig, pull, pull_reference
from plait.kernels.pull_rows import INDEX_PARTS, RowPart, mla_parts, pull_rows, pull_rows_reference

SMALL = PullConfig(chunk=256, warps=4, programs=3)


def lists(
    rng: np.random.Generator, peers: PeerBytes, *, count: int, dense: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    owner = rng.integers(0, peers.ranks, count)
    physical = rng.integers(0, peers.pages, count)
    place = rng.permutation(dense)[:count]
    place[rng.random(count) < 0.2] = -1
    return tuple(torch.from_numpy(a).to(dtype) for a in (owner, physical, place))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("page_bytes", [16, 48, 256, 528, 1040])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_pull_moves_the_listed_pages_and_nothing_else(
    ranks: int, page_bytes: int, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(page_bytes * 8 + ranks)
    for count in (0, 1, 2, 7):
        peers = peer_bytes(rng, ranks=ranks, pages=5, page_bytes=page_bytes, hole=int(rng.integers(0, 3)))
        owner, physical, place = lists(rng, peers, count=count, dense=9, dtype=dtype)
        out, expected = Guarded((9, page_bytes)), Guarded((9, page_bytes))
        first = int(rng.integers(0, 10))
        pull(
            peers.spanning,
            peers.stride,
            page_bytes,
            owner,
            physical,
            place,
            out.tensor,
            first=first,
            config=SMALL,
        )
        pull_reference(peers.spanning, peers.stride, page_bytes, owner, physical, place, expected.tensor)
        assert same_bytes(out.tensor, expected.tensor)
        out.check()
        for i in range(count):
            if place[i] >= 0:
                start = int(owner[i]) * peers.stride + int(physical[i]) * page_bytes
                assert same_bytes(out.tensor[place[i]], peers.spanning[start : start + page_bytes])
        untouched = sorted(set(range(9)) - set(place.tolist()))
        assert bool((out.tensor[untouched] == POISON).all())


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("page_bytes", [41984, 8448, 73728])
def test_pull_of_real_pages_under_each_shipped_config(page_bytes: int, config: PullConfig) -> None:
    rng = np.random.default_rng(page_bytes)
    peers = peer_bytes(rng, ranks=2, pages=2, page_bytes=page_bytes, hole=1)
    owner, physical, place = lists(rng, peers, count=3, dense=4, dtype=torch.int32)
    out, expected = Guarded((4, page_bytes)), Guarded((4, page_bytes))
    arguments = (peers.spanning, peers.stride, page_bytes, owner, physical, place)
    pull(*arguments, out.tensor, first=1, config=config)
    pull_reference(*arguments, expected.tensor)
    assert same_bytes(out.tensor, expected.tensor)
    out.check()


@pytest.mark.parametrize(
    ("page_bytes", "parts"),
    [
        (8448, INDEX_PARTS),
        (41984, mla_parts(656)),
        (64 * 16, (RowPart(0, 16),)),
        (64 * 20, (RowPart(0, 12), RowPart(768, 8))),
    ],
)
def test_pull_rows_moves_the_row_ranges_and_nothing_else(page_bytes: int, parts: tuple[RowPart, ...]) -> None:
    rng = np.random.default_rng(page_bytes)
    for count, config in ((0, SMALL), (1, CONFIGS[0]), (3, CONFIGS[3]), (4, PullConfig(2048, 4, 2))):
        peers = peer_bytes(rng, ranks=3, pages=2, page_bytes=page_bytes, hole=1)
        owner, physical, place = lists(rng, peers, count=count, dense=5, dtype=torch.int32)
        bounds = np.sort(rng.integers(0, 65, (count, 2)), axis=1)
        if count > 1:
            bounds[0], bounds[1] = (0, 64), (17, 17)
        begin, end = (torch.from_numpy(bounds[:, i].copy()).to(torch.int32) for i in (0, 1))
        out, expected = Guarded((5, page_bytes)), Guarded((5, page_bytes))
        arguments = (peers.spanning, peers.stride, page_bytes, owner, physical, place, begin, end)
        pull_rows(*arguments, out.tensor, parts=parts, config=config)
        pull_rows_reference(*arguments, expected.tensor, parts=parts)
        assert same_bytes(out.tensor, expected.tensor)
        out.check()
        plain = Guarded((5, page_bytes)).tensor
        for i in range(count):
            for offset, size in parts if place[i] >= 0 else ():
                span = slice(offset + int(begin[i]) * size, offset + int(end[i]) * size)
                start = int(owner[i]) * peers.stride + int(physical[i]) * page_bytes
                plain[place[i], span] = peers.spanning[start + span.start : start + span.stop]
        assert same_bytes(out.tensor, plain)


def test_sizes_that_do_not_fit_are_refused() -> None:
    rng = np.random.default_rng(0)
    peers = peer_bytes(rng, ranks=2, pages=2, page_bytes=64, hole=0)
    ids = torch.zeros(1, dtype=torch.int32)
    out = torch.zeros(4, 64, dtype=torch.uint8)
    with pytest.raises(ValueError, match="multiples of 16"):
        pull(peers.spanning, peers.stride, 24, ids, ids, ids, out)
    with pytest.raises(ValueError, match="multiples of 16"):
        pull(peers.spanning, 8, 64, ids, ids, ids, out)
    with pytest.raises(ValueError, match="one dtype"):
        pull(peers.spanning, peers.stride, 64, ids, ids.long(), ids, out)
    with pytest.raises(ValueError, match="int32 or int64"):
        pull(peers.spanning, peers.stride, 64, ids.float(), ids.float(), ids.float(), out)
    with pytest.raises(ValueError, match="whole pages"):
        pull(peers.spanning, peers.stride, 48, ids, ids, ids, out)
    with pytest.raises(ValueError, match="contiguous uint8"):
        pull(peers.spanning, peers.stride, 64, ids, ids, ids, out[:, ::2])
    with pytest.raises(ValueError, match="no multiple of 16"):
        pull(peers.spanning[1:], peers.stride, 64, ids, ids, ids, out)
    with pytest.raises(ValueError, match="one or two"):
        pull_rows(peers.spanning, peers.stride, 64, ids, ids, ids, ids, ids, out, parts=())
    with pytest.raises(ValueError, match="within the page"):
        pull_rows(peers.spanning, peers.stride, 64, ids, ids, ids, ids, ids, out, parts=(RowPart(0, 4),))
    with pytest.raises(ValueError, match="multiple of the page"):
        pull_reference(peers.spanning, 80, 64, ids, ids, ids, out)
