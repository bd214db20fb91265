"""Every kernel on one GPU: byte for byte against its reference on many random cases, then how fast it is.

    python3 tests/gpu/kernels_on_gpu.py --out kernels.json [--parts check,time] [--limit-s 85]

GPU times are medians of CUDA-graph replays of 64 launches that go round several buffers (so that L2 is cold),
the plain copy of the same number of bytes likewise; `eager` and `reference` are the same loop launched from
Python, host time included, as the engine would launch them (most references must wait for the device).
Bytes: each useful byte that is read and each that is written. Ends with 1 on any wrong byte, with 3 long
after the limit.
Needs torch, triton, numpy; no plait install, no engine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from tests.gpu.kernel_cases import KINDS, Kind
from tests.gpu.kernel_inputs import Case, Maker

from plait.kernels import choose, store_mla
from plait.kernels.store_mla import packed_rows
from plait.kernels.trials import close_rows, same

ROWS = (1, 2, 63, 64, 65, 127, 500, 1000, 4097, 8192)
LAUNCHES = 64
REPLAYS = 9
COLD_BYTES = 240e6
DEVICE = torch.device("cuda")


@triton.jit
def stock_quantize(
    values: tl.tensor, scales: tl.tensor, nope: tl.tensor, low: tl.constexpr, high: tl.constexpr
) -> None:
    """Stock's `_quantize_k_cache_fast_kernel`, operation for operation: one tile of one token a program."""
    token, tile = tl.program_id(0), tl.program_id(1)
    within = tile * 128 + tl.arange(0, 128)
    y = tl.load(nope + token * 512 + within).to(tl.float32)
    scale = tl.max(tl.abs(y)) / high
    inverse = 1.0 / scale
    q = tl.clamp(y * inverse, low, high).to(values.dtype.element_ty)
    tl.store(values + token * 512 + within, q)
    tl.store(scales + token * 4 + tile, scale)


def check_stock_bytes(seed: int) -> dict[str, int]:
    """The packed rows are stock's, to the last bit; how often an exact division would have differed."""
    count = 20000
    make = Maker(seed, DEVICE, holes=True)
    nope, rope = make.rows(count, 512), make.rows(count, 64)
    nope[0], nope[1, :128], nope[2] = 0, 0, 1e-38
    nope[3], nope[4, 7], nope[5] = 448.0, 3e38, -1.75 * 2.0**-20
    values = torch.empty((count, 512), dtype=torch.float8_e4m3fn, device=DEVICE)
    scales = torch.empty((count, 4), dtype=torch.float32, device=DEVICE)
    stock_quantize[(count, 4)](values, scales, nope, low=-448.0, high=448.0)
    expected = torch.cat([part.view(torch.uint8) for part in (values, scales, rope)], dim=1)
    out = make.out(count + 64, 656)
    slots = torch.arange(64, 64 + count, device=DEVICE)
    for config in store_mla.CONFIGS:
        out.poison()
        store_mla.store_mla(out.tensor, slots, nope, rope, rank=0, ranks=1, config=config)
        out.check()
        same(out.tensor[64:], expected)
    exact = packed_rows(nope, rope)
    # Without the first rows: zeros and numbers near the smallest, where the fast division has no bound.
    close_rows(expected[3:], exact[3:])
    differ = (expected != exact).view(count, 656)
    return {
        "rows": count,
        "code_of_a_zero_tile": int(expected[0, 0]),
        "code_in_torch": int(exact[0, 0]),
        "scales_unlike_exact": int(differ[:, 512:528].view(count, 4, 4).any(2).sum()),
        "values_unlike_exact": int(differ[:, :512].sum()),
    }


def check(until: float) -> tuple[dict[str, Any], list[str]]:
    """What was checked, and what was wrong."""
    wrong = []
    choices = choose(DEVICE)
    wrong += [f"{name}: {choice.reason}" for name, choice in choices.items() if choice.way != "triton"]
    told: dict[str, Any] = {"trials": len(choices), "trials_s": round(time.monotonic() - STARTED, 1)}
    try:
        told["stock_bytes"] = check_stock_bytes(1)
    except Exception as error:
        wrong.append(f"stock bytes: {error}")
    cases = dict.fromkeys(KINDS, 0)
    seed = 0
    while time.monotonic() < until and seed < 400:
        seed += 1
        for name, kind in KINDS.items():
            rows = ROWS[seed % len(ROWS)] if seed <= len(ROWS) else 1 + (seed * 7919) % 3000
            try:
                case = kind.build(Maker(seed, DEVICE, holes=seed % 5 != 0), rows)
                case.check(kind.configs[seed % len(kind.configs)])
                cases[name] += 1
            except Exception as error:
                wrong.append(f"{name}, {rows} rows, seed {seed}: {type(error).__name__}: {error}"[:400])
        if len(wrong) > 20:
            break
    torch.cuda.synchronize()
    wrong += [
        f"{name}: only {count} random cases within the limit" for name, count in cases.items() if count < 10
    ]
    told["random_cases"] = cases
    return told, wrong


def graph_us(launches: list[Callable[[], Any]]) -> float:
    """Median GPU time of one launch, in microseconds: `launches` in turn, from a CUDA graph."""
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(LAUNCHES):
            launches[turn % len(launches)]()
    graph.replay()
    return statistics.median(timed(graph.replay) for _ in range(REPLAYS)) / LAUNCHES


def eager_us(launches: list[Callable[[], Any]], turns: int) -> float:
    """Time of one launch from Python, in microseconds."""

    def loop() -> None:
        for turn in range(turns):
            launches[turn % len(launches)]()

    loop()
    return statistics.median(timed(loop) for _ in range(3)) / turns


def timed(go: Callable[[], Any]) -> float:
    """Microseconds on the current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    go()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000.0


_copies: dict[int, float] = {}


def copy_us(nbytes: int) -> float:
    """A plain device copy that reads and writes `nbytes` together."""
    half = max(16, nbytes // 2)
    if half not in _copies:
        sets = sets_for(nbytes)
        pairs = [[torch.empty(half, dtype=torch.uint8, device=DEVICE) for _ in range(2)] for _ in range(sets)]
        _copies[half] = graph_us([lambda p=pair: p[0].copy_(p[1]) for pair in pairs])  # type: ignore[misc]
    return _copies[half]


def sets_for(nbytes: int) -> int:
    return max(2, min(40, math.ceil(COLD_BYTES / nbytes)))


def time_kind(name: str, kind: Kind, rows: int) -> dict[str, Any]:
    first = kind.build(Maker(0, DEVICE, holes=False), rows)
    cases = [
        first,
        *(kind.build(Maker(i, DEVICE, holes=False), rows) for i in range(1, sets_for(first.nbytes))),
    ]
    cases[0].check(kind.configs[0])
    by_config = {str(c): graph_us([bound(case, c) for case in cases]) for c in kind.configs}
    best = min(by_config, key=lambda config: by_config[config])
    config = next(c for c in kind.configs if str(c) == best)
    copy, us = copy_us(first.nbytes), by_config[best]
    eager = eager_us([bound(case, config) for case in cases], 50)
    reference = eager_us([case.reference for case in cases], 8)
    return {
        "kernel": name,
        "rows": rows,
        "us": round(us, 2),
        "gbps": round(first.nbytes / us / 1e3, 1),
        "copy_us": round(copy, 2),
        "of_copy": round(copy / us, 3),
        "eager_us": round(eager, 2),
        "reference_us": round(reference, 2),
        "faster_than_reference": round(reference / max(eager, us), 2),
        "default": round(by_config[str(kind.configs[0])], 2),
        "best": best,
        "configs": {one: round(value, 2) for one, value in by_config.items()},
        "bytes": first.nbytes,
    }


def bound(case: Case, config: Any) -> Callable[[], Any]:
    return lambda: case.run(config)


def time_all(until: float) -> tuple[list[dict[str, Any]], list[str]]:
    table, wrong = [], []
    print(f"{'kernel':18s}{'rows':>7s}{'us':>9s}{'GB/s':>8s}{'of copy':>9s}{'eager':>8s}{'torch':>9s}  best")
    for rows in (8192, 32768, 131072):
        for name, kind in KINDS.items():
            if rows > 32768 and not kind.large:
                continue
            if time.monotonic() > until:
                wrong.append(f"not timed within the limit: {name} at {rows} rows")
                continue
            try:
                row = time_kind(name, kind, rows)
            except Exception as error:
                wrong.append(f"{name}, {rows} rows: {type(error).__name__}: {error}"[:400])
                continue
            table.append(row)
            print(
                f"{name:18s}{rows:7d}{row['us']:9.2f}{row['gbps']:8.0f}{row['of_copy']:9.2f}"
                f"{row['eager_us']:8.1f}{row['reference_us']:9.1f}  {row['best']}",
                flush=True,
            )
    return table, wrong


STARTED = time.monotonic()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default="check,time")
    parser.add_argument("--limit-s", type=float, default=85.0)
    args = parser.parse_args()
    watchdog = threading.Timer(
        args.limit_s + 30, lambda: (print("the limit has passed", flush=True), os._exit(3))
    )
    watchdog.daemon = True
    watchdog.start()
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    result["triton"] = triton.__version__
    wrong: list[str] = []
    if "check" in args.parts:
        share = 0.5 if "time" in args.parts else 0.95
        result["check"], found = check(STARTED + args.limit_s * share)
        wrong += found
        print(json.dumps(result["check"]), flush=True)
    late: list[str] = []
    if "time" in args.parts:
        result["table"], late = time_all(STARTED + args.limit_s)
    result["wrong"], result["not_timed"] = wrong, late
    result["seconds"] = round(time.monotonic() - STARTED, 1)
    with contextlib.suppress(FileNotFoundError):
        args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1))
    for line in (*wrong, *late):
        print(f"  ! {line}")
    print(f"{'ok' if not wrong else 'WRONG'} in {result['seconds']} s")
    return 1 if wrong or any("within the limit" not in line for line in late) else 0


if __name__ == "__main__":
    sys.exit(main())
