"""Times on the device, of all ranks together."""

from __future__ import annotations

from statistics import median

import torch
import torch.distributed as dist
from bench.gather.pools import Bench, Run

ROUNDS = 15


def timed(bench: Bench, run: Run, *, rounds: int = ROUNDS, ahead_us: float = 600.0) -> float:
    """Milliseconds of `run` on the device: median of this rank's rounds, the most of all ranks.

    ahead_us: how long the device sleeps first, so that the host is ahead of it.
    """
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(ahead_us * 1900))
        bench.meet()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    slowest = torch.full((1,), median(times), device=bench.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.cpu()[0])
