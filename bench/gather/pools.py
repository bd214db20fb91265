"""What the timings run on: real peer memory with a prefix and a chunk in it, and the check of a gather."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from plait.contract.layouts import PAGE_SIZE
from plait.gather import GatherPlan, GatherRequest
from plait.gather.peer_exchange import Spans
from plait.peer import Barrier, Segment, open_barrier, open_peer_memory

KINDS = {"mla": 656, "index": 132}
"""Bytes of a token's row by kind: GLM-5's, FP8."""
LAYERS = 3
TIMEOUT_S = 30.0
CHUNK_PAGES = 128
Run = Callable[[], None]


class Bench(NamedTuple):
    """A rank's pools, slots and lists for one prefix length. pools: [layer][kind]."""

    rank: int
    ranks: int
    device: torch.device
    plan: GatherPlan
    spans: dict[str, Spans]
    slots: dict[str, list[torch.Tensor]]
    meet: Run
    barriers: dict[str, Barrier]


@contextmanager
def opened(
    tokens: int, *, rank: int, ranks: int, device: torch.device, folder: Path, shuffled: bool
) -> Iterator[Bench]:
    """Pools with a prefix of `tokens` and a chunk, as a fresh pool hands pages out, or in random order."""
    pages = tokens // PAGE_SIZE + CHUNK_PAGES
    stripes = -(-pages // ranks)
    memory = open_peer_memory(
        [
            Segment(f"{name}.{layer}", (stripes + 1) * PAGE_SIZE * row)
            for name, row in KINDS.items()
            for layer in range(LAYERS)
        ],
        rank=rank,
        ranks=ranks,
        device=device,
        folder=folder,
        unit_bytes=[PAGE_SIZE * row for row in KINDS.values()],
        timeout_s=TIMEOUT_S,
    )
    ids = np.arange(ranks, ranks + stripes * ranks, dtype=np.int64)
    if shuffled:
        # Owners in turn, but the pages of each rank in random order: the worst that fragments can be.
        grid = ids.reshape(stripes, ranks)
        ids = np.random.default_rng(3).permuted(grid, axis=0).reshape(-1)
    plan = GatherPlan.from_requests(
        [GatherRequest(tokens, CHUNK_PAGES * PAGE_SIZE, ids[:pages])], ranks=ranks, budget=pages
    )
    spans, slots, barriers = {}, {}, {}
    for number, (name, row) in enumerate(KINDS.items()):
        width = PAGE_SIZE * row
        spans[name] = Spans(memory, [f"{name}.{layer}" for layer in range(LAYERS)], page_bytes=width)
        for layer, own in enumerate(spans[name].own):
            generator = torch.Generator(device).manual_seed(100 * rank + 10 * layer + number)
            own.random_(0, 256, generator=generator)
        slots[name] = [torch.zeros(pages + 1, width, dtype=torch.uint8, device=device) for _ in range(2)]
        barriers[name] = open_barrier(memory, channel=1 + number, name=name, timeout_s=TIMEOUT_S)
    barrier = open_barrier(memory, channel=0, name="bench", timeout_s=TIMEOUT_S)
    torch.cuda.synchronize()
    dist.barrier()
    try:
        yield Bench(rank, ranks, device, plan, spans, slots, barrier.meet, barriers)
    finally:
        spans.clear()
        torch.cuda.synchronize()
        dist.barrier()
        memory.close()


def check(bench: Bench, name: str, run: Run) -> None:
    """The dense pages after two runs must equal what the owners hold, asked for one owner at a time."""
    for slots in bench.slots.values():
        for slot in slots:
            slot.fill_(0xFF)
    torch.cuda.synchronize()
    dist.barrier()
    part = bench.plan.prefix
    run()
    run()
    torch.cuda.synchronize()
    for kind, spans in bench.spans.items():
        rank = torch.from_numpy(part.owner).to(bench.device)
        row = torch.from_numpy(part.physical).to(bench.device)
        for owner in range(bench.ranks):
            chosen = rank == owner
            dense = torch.from_numpy(part.dense).to(bench.device)[chosen]
            # `run` may have been called before, so either slot may hold either of two layers next.
            held = [
                span[owner * spans.stride :][: own.numel()].view(own.shape)[row[chosen]]
                for span, own in zip(spans.spanning, spans.own, strict=True)
            ]
            for slot in bench.slots[kind]:
                if not any(torch.equal(slot[dense], pages) for pages in held):
                    raise RuntimeError(f"{name}: the {kind} pages of rank {owner} differ from the owner's")
    dist.barrier()
