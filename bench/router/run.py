"""`make bench-router`: every router in turn on one core, several rounds, one table and one JSON file.

Order within a round changes from round to round, so that a machine that slows down over the time slows down
all of them. The router has its core alone; generator and mock engines share the other.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from pathlib import Path
from typing import Any

from bench.router import figures, interpreters, lean, machine, phases, table, tools
from bench.router.figures import SGLANG
from bench.router.interpreters import Interpreter
from bench.router.lean import Lean
from bench.router.mocks import mock_engines
from bench.router.phases import Errors
from bench.router.prefix import trace
from bench.router.routers import (
    SGLANG_LOG_LEVEL,
    Baseline,
    Plait,
    Router,
    SglangRouter,
    features,
    started,
)
from rich.console import Console

_ENGINES_A_SIDE = 2
_QUIET = "warn"


def main() -> int:
    """Measure; 0: sound (with --check: and within all bounds), 1: not, 2: the machine cannot."""
    options = _options()
    console = Console() if sys.stdout.isatty() else Console(width=110)
    try:
        cores = machine.split_cores()
        machine.allow_files()
        with tools.alone():
            base = interpreters.best()
            tools.build(base)
            plait = lean.build(base)
            report = _measure(options, base, plait, cores, console)
    except (machine.MachineError, tools.LoadError) as error:
        console.print(f"bench-router: {error}", style="red", highlight=False, markup=False)
        return 2
    out = options.out or tools.ROOT / (
        ".plait/bench/router-quick.json" if options.quick else "docs/figures/router.json"
    )
    figures.write(out, report)
    console.print(f"written to {out}", highlight=False)
    for text in report["errors"]:
        console.print(text, style="red", highlight=False, markup=False)
    missed = [b.name for b in figures.bounds(report) if not b.kept]
    # Against cache_aware without PD, which works, it is a figure to see; the bound is the one of pairs.
    missed += [name for name, kept in report["prefix_kept"].items() if not kept and name.endswith(SGLANG)]
    return 1 if report["errors"] or (options.check and missed) else 0


def _measure(
    options: argparse.Namespace, base: Interpreter, plait: Lean, cores: machine.Cores, console: Console
) -> dict[str, Any]:
    lengths = phases.QUICK if options.quick else phases.FULL
    errors = Errors()
    about = machine.describe()
    one, four = Plait(python=plait.python), Plait(python=plait.python, processes=4)
    sglang, baseline = SglangRouter(log_level=options.sglang_log_level), Baseline()
    has = features(plait.python)
    for name, there in has.items():
        if not there:
            option = name.replace("_", "-")
            console.print(f"plait router has no --{option}: measured without it", style="yellow")
    rounds: list[dict[str, Any]] = []
    memory: dict[str, dict[str, float]] = {}
    quiet: dict[str, float] = {}
    with mock_engines(core=cores.load, prefill=_ENGINES_A_SIDE, decode=_ENGINES_A_SIDE) as mocks:
        for number in range(lengths.rounds):
            turn: list[Router] = [one, sglang]
            if has["processes"]:
                turn.append(four)
            if number % 2 == 0:  # a reference beside the comparison: every second round will do
                turn.append(baseline)
            turn = turn[number % len(turn) :] + turn[: number % len(turn)]
            found: dict[str, Any] = {}
            for router in turn:
                console.print(f"round {number + 1} of {lengths.rounds}: {router.name}", highlight=False)
                with started(router, mocks, core=cores.router) as running:
                    mocks.reset()
                    found[router.name] = phases.speed(
                        running, mocks, lengths, errors, requests_only=router is four
                    )
            rounds.append(found)
        if options.sglang_log_level == SGLANG_LOG_LEVEL:
            console.print(f"once with fewer logs: {sglang.name}", highlight=False)
            with started(SglangRouter(log_level=_QUIET), mocks, core=cores.router) as running:
                quiet = phases.costs(running, lengths, errors)
        # Not the baseline: httpx needs minutes for so many streams.
        for router in (one,) if options.quick else (one, sglang):
            console.print(f"{lengths.streams} streams: {router.name}", highlight=False)
            with started(router, mocks, core=cores.router) as running:
                memory[router.name] = phases.memory(running, lengths, errors)
    console.print("prefix trace", highlight=False)
    rivals = [sglang, SglangRouter(pairs=False, log_level=options.sglang_log_level)]
    placed = trace(
        [one, *rivals] if options.quick else [one, *rivals, baseline],
        forms=lengths.forms,
        cores=cores,
        conversations=lengths.conversations,
        errors=errors,
    )
    about["load_average_after"] = machine.describe()["load_average_before"]
    headline = figures.headline(rounds, memory)
    fewer_logs = figures.against(rounds, quiet)
    table.show(console, rounds, memory, placed, headline, fewer_logs)
    if not plait.compiled:
        console.print("plait router ran uncompiled: an image runs it compiled", style="yellow")
    return {
        **{name: None if value is None else round(value, 3) for name, value in headline.items()},
        "prefix_kept": figures.prefix_verdict(placed),
        "bounds": {b.name: b.most for b in figures.bounds(headline)},
        "errors": errors,
        "command": shlex.join(["python", "-m", "bench.router.run", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(tools.ROOT),
        "machine": about,
        "python": {name: value for name, value in base._asdict().items() if name != "path"},
        "compiled": plait.compiled > 0,
        "compiled_modules": plait.compiled,
        "sglang_log_level": options.sglang_log_level,
        f"sglang_at_{_QUIET}": {phase: each._asdict() for phase, each in fewer_logs.items()},
        "versions": tools.versions(),
        "plait_features": has,
        "note": "CPU: user and system time of all processes of the router. Ratios: medians over the rounds.",
        "rounds": rounds,
        "memory_mb": memory,
        "prefix": {form: {n: p._asdict() for n, p in by.items()} for form, by in placed.items()},
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-router", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, about a minute")
    parser.add_argument("--check", action="store_true", help="exit status 1 when a bound is not kept")
    parser.add_argument("--out", type=Path, help="where the JSON goes (full: docs/figures/router.json)")
    parser.add_argument(
        "--sglang-log-level",
        default=SGLANG_LOG_LEVEL,
        help=f"its own default writes two lines for each request; its CPU at {_QUIET} is told beside",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
