"""`make soak-router`: 1,000 streams at once for minutes; no error, and neither memory nor files may grow.

Streams of mixed lengths, each token by itself, every answer checked byte for byte. Memory and open files of
the router's processes are read once a second; growth is the last fifth against the second one (the first
fills caches and pools). After the load, connections of clients must be gone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from bench.router import interpreters, lean, machine, tools
from bench.router.mocks import Mocks, mock_engines
from bench.router.routers import KEY, Plait, Router, Running, SglangRouter, started
from rich.console import Console

_PACE = 10  # tokens/s of a stream
_LONGEST = 200  # tokens
# Memory of one process may settle by so much, and pools of connections may breathe.
_GROWTH_MB = 10.0
_GROWTH_FILES = 20


class Sample(NamedTuple):
    """The router at one moment: MiB of its largest process, and open files of all."""

    memory: float
    files: int


class Growth(NamedTuple):
    """From the second fifth of the samples to the last one, medians."""

    memory_mb: float
    files: float


def growth(samples: Sequence[Sample]) -> Growth:
    """What `samples`, evenly spaced in time, say about growth. ValueError with fewer than five."""
    fifth = len(samples) // 5
    if not fifth:
        raise ValueError(f"{len(samples)} samples: a soak needs at least 5 seconds")
    early, late = samples[fifth : 2 * fifth], samples[-fifth:]
    return Growth(
        median(s.memory for s in late) - median(s.memory for s in early),
        median(s.files for s in late) - median(s.files for s in early),
    )


def main() -> int:
    """Soak; 0: nothing wrong, 1: something was, 2: the machine cannot."""
    options = _options()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    try:
        cores = machine.split_cores()
        machine.allow_files()
        with tools.alone():
            base = interpreters.best()
            tools.build(base)
            router: Router = SglangRouter()
            if options.router == "plait":
                router = Plait(python=lean.build(base).python, processes=options.processes)
            with (
                mock_engines(core=cores.load, prefill=2, decode=2) as mocks,
                started(router, mocks, core=cores.router) as running,
            ):
                mocks.reset()
                faults = _soak(running, mocks, options, console)
    except (machine.MachineError, tools.LoadError) as error:
        console.print(f"soak-router: {error}", style="red", markup=False)
        return 2
    for fault in faults:
        console.print(fault, style="red", markup=False)
    console.print("kept" if not faults else "not kept")
    return 1 if faults else 0


def _soak(router: Running, mocks: Mocks, options: argparse.Namespace, console: Console) -> list[str]:
    before = router.tree.files()
    samples, figures = _load(router, options, console)
    time.sleep(3)
    after = router.tree.files()
    grown = growth(samples)
    console.print(
        f"{figures['all_requests']} streams, {figures['all_chunks']} tokens, CPU {figures['cpu_s']:.0f} s of "
        f"{figures['seconds']:.0f} s; memory {samples[-1].memory:.0f} MiB ({grown.memory_mb:+.1f}), "
        f"files {samples[-1].files} ({grown.files:+.0f}), before {before}, afterwards {after}"
    )
    rooms = mocks.stats()["rooms"]
    faults = []
    if figures["errors"]:
        faults.append(f"{figures['errors']} streams failed, the first: {figures['error_examples'][0]}")
    if rooms["twice"] or rooms["lonely"]:
        faults.append(f"bootstrap rooms used twice, or by one side only: {rooms}")
    if grown.memory_mb > _GROWTH_MB:
        faults.append(f"memory grew by {grown.memory_mb:.1f} MiB, more than {_GROWTH_MB:g}")
    if grown.files > _GROWTH_FILES:
        faults.append(f"open files grew by {grown.files:.0f}, more than {_GROWTH_FILES}")
    # Every stream's connection to its client is closed; those to engines may be kept for the next request.
    if after >= before + options.streams:
        faults.append(f"{after} files are open after the load, {before} were before: connections are left")
    return faults


def _load(
    router: Running, options: argparse.Namespace, console: Console
) -> tuple[list[Sample], dict[str, Any]]:
    command = [tools.program("load"), "soak", "-address", router.address, "-key", KEY]
    command += ["-conns", str(options.streams), "-pace", str(_PACE), "-tokens", str(_LONGEST)]
    command += ["-window", f"{options.minutes * 60:.0f}s", "-pids", ",".join(map(str, router.tree.pids()))]
    samples: list[Sample] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as generator:
        began = told = time.monotonic()
        while generator.poll() is None:
            time.sleep(1)
            now = time.monotonic()
            if now - began >= options.minutes * 60:
                continue  # streams run out: no longer part of the soak
            samples.append(Sample(router.tree.memory().largest, router.tree.files()))
            if now - told >= 15:
                told = now
                last = samples[-1]
                console.print(f"{now - began:.0f} s: {last.memory:.0f} MiB, {last.files} files")
        assert generator.stdout is not None
        lines = generator.stdout.read().splitlines()
    if generator.returncode or not lines:
        raise tools.LoadError(f"the generator failed (exit status {generator.returncode})")
    return samples, json.loads(lines[-1])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak-router", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1, help="of Plait's router")
    parser.add_argument("--router", choices=("plait", "sglang-router"), default="plait")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
