"""What the engine's hooks launch on their own, on one real GPU: right, and without making the host wait.

    python3 tests/gpu/engine_paths_on_gpu.py --out result.json

Under `torch.cuda.set_sync_debug_mode("error")`: index arrays that go up through pinned memory while the
device is busy (a block must not be used again before its copy has run), and the flat list of slots that
sparse attention on an FP8 cache is given (many shapes, empty ranks too, against plain Python). Then the time
on the host for each. Needs torch alone; ends with 1 on any wrong value. A watchdog ends it after 80 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from pathlib import Path

import numpy as np
import torch

from plait.contract.layouts import PAGE_SIZE
from plait.engine.index_path import flat_list
from plait.gather.upload import uploaded

LIMIT_S = 80.0
DEVICE = torch.device("cuda", 0)


class WrongValueError(Exception):
    """A value that is not what it must be."""


def busy() -> None:
    """Keep the device busy for some milliseconds."""
    x = torch.ones(4096, 4096, device=DEVICE)
    for _ in range(8):
        x = x @ x
        x /= 4096.0


def uploads(rounds: int) -> dict[str, float]:
    """Arrays sent while the device works, many times over, read back only at the end."""
    dice = np.random.default_rng(1)
    sent, took = [], []
    for _ in range(rounds):
        busy()
        arrays = [dice.integers(0, 1 << 40, int(dice.integers(0, 3000))) for _ in range(3)]
        kept = [array.copy() for array in arrays]
        started = time.perf_counter()
        there = uploaded(*arrays, device=DEVICE)
        took.append(time.perf_counter() - started)
        for array in arrays:
            array[:] = -1  # the caller's memory may change at once
        sent.append((kept, there))
    waiting = time.perf_counter()
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    behind = time.perf_counter() - waiting
    for kept, there in sent:
        for array, tensor in zip(kept, there, strict=True):
            if not np.array_equal(tensor.cpu().numpy(), array):
                raise WrongValueError("an array arrived changed: its pinned block was used again too early")
    return {"rounds": rounds, "host_us": statistics.median(took) * 1e6, "device_behind_ms": behind * 1e3}


def flat_lists(cases: int) -> dict[str, float]:
    """The flat list against plain Python; its launches must not wait for the device."""
    dice = np.random.default_rng(2)
    for _ in range(cases):
        requests = int(dice.integers(0, 6))
        lengths = dice.integers(1, 700, requests)
        table = dice.integers(0, 1 << 30, (requests, int(lengths.max(initial=0)) + int(dice.integers(0, 70))))
        there = torch.from_numpy(table.astype(np.int32)).to(DEVICE)
        torch.cuda.set_sync_debug_mode("error")
        found = flat_list(there, lengths)
        torch.cuda.set_sync_debug_mode("default")
        wanted = [slot for row, length in zip(table, lengths, strict=True) for slot in row[:length]]
        if found.tolist() != (wanted or list(range(PAGE_SIZE))):
            raise WrongValueError(f"flat list of lengths {lengths.tolist()}")
    return {"cases": cases, **timed_flat_list(131_072)}


def timed_flat_list(tokens: int) -> dict[str, float]:
    """Host and device time of one list of `tokens` slots: once a batch."""
    table = torch.arange(tokens, dtype=torch.int32, device=DEVICE)[None]
    host, device = [], []
    for _ in range(30):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        started = time.perf_counter()
        flat_list(table, np.array([tokens]))
        host.append(time.perf_counter() - started)
        last.record()
        last.synchronize()
        device.append(first.elapsed_time(last))
    return {
        "tokens": tokens,
        "host_us": statistics.median(host) * 1e6,
        "gpu_us": statistics.median(device) * 1e3,
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    watchdog = threading.Timer(LIMIT_S, lambda: os._exit(2))
    watchdog.daemon = True
    watchdog.start()
    told: dict[str, object] = {"gpu": torch.cuda.get_device_name(DEVICE), "torch": torch.__version__}
    busy()
    uploaded(np.arange(9000), device=DEVICE)  # the first pinned block is allocated, which may wait
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        told["uploads"] = uploads(200)
        told["flat_lists"] = flat_lists(300)
        told["wrong"] = None
    except (WrongValueError, RuntimeError) as error:
        told["wrong"] = f"{type(error).__name__}: {error}"
    out.write_text(json.dumps(told, indent=2))
    print(json.dumps(told, indent=2))
    return 0 if told["wrong"] is None else 1


if __name__ == "__main__":
    raise SystemExit(main())
