"""What a layer of compute takes longer while the next layer's pages are fetched beside it."""

from __future__ import annotations

from statistics import median

import torch
from bench.gather.device_time import timed
from bench.gather.pools import Bench, Run

LOOP_LAYERS = 8
COMPUTE_MS = 1.8
TURNS = 7
"""Of compute alone and with a gather beside it, in turn: clocks drift by more than what is measured."""


def exposed(bench: Bench, runs: dict[str, Run], chunk: Run) -> dict[str, float]:
    """Microseconds that a layer of COMPUTE_MS takes longer with the next layer's prefix fetched beside it;
    `..._with_chunk`: with `chunk`, the barriers and the chunk's pulls of both kinds, before it as well."""
    layer = compute(bench)
    side = torch.cuda.Stream(bench.device)

    def loop(gather: Run | None, first: Run | None = None) -> Run:
        def run() -> None:
            main = torch.cuda.current_stream()
            for _ in range(LOOP_LAYERS):
                if first is not None:
                    first()
                if gather is not None:
                    side.wait_stream(main)
                    with torch.cuda.stream(side):
                        gather()
                layer()
                main.wait_stream(side)

        return run

    def per_layer(run: Run) -> float:
        return timed(bench, run, rounds=3, ahead_us=4000) / LOOP_LAYERS

    alone = loop(None)
    bases = []

    def lost(run: Run) -> float:
        differences = []
        for _ in range(TURNS):
            bases.append(per_layer(alone))
            differences.append(per_layer(run) - bases[-1])
        return round(median(differences) * 1e3, 1)

    told = {
        name: lost(loop(runs[name]))
        for name in ("all_reduce", "all_gather", "pull", *(name for name in runs if name.startswith("copy")))
    }
    told["chunk_only"] = lost(loop(None, chunk))
    told["copy_1_with_chunk"] = lost(loop(runs["copy_1"], chunk))
    return {"compute_ms": round(median(bases), 4), **told}


def compute(bench: Bench) -> Run:
    """bf16 matrix products, as many as take COMPUTE_MS on this device."""
    left = torch.randn(8192, 4096, device=bench.device, dtype=torch.bfloat16)
    right = torch.randn(4096, 4096, device=bench.device, dtype=torch.bfloat16)
    out = torch.empty(8192, 4096, device=bench.device, dtype=torch.bfloat16)

    def times(count: int) -> Run:
        def run() -> None:
            for _ in range(count):
                torch.mm(left, right, out=out)

        return run

    count = max(1, round(COMPUTE_MS / (timed(bench, times(8)) / 8)))
    return times(count)
