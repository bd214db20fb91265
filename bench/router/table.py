"""The tables that a run prints: the routers, placement by prefix, and the bounds."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from bench.router.figures import Cost, Rounds, bounds, of, prefix_verdict
from bench.router.prefix import Placement
from rich.console import Console
from rich.table import Table


def show(
    console: Console,
    rounds: Rounds,
    memory: Mapping[str, Mapping[str, float]],
    trace: Mapping[str, Mapping[str, Placement]],
    figures: Mapping[str, float | None],
    fewer_logs: Mapping[str, Cost],
) -> None:
    """Print three tables: the routers, placement, and the bounds.

    `fewer_logs`: what sglang-router costs at a log level that its users have to ask for.
    """
    names = list(dict.fromkeys(name for each in rounds for name in each))
    table = Table("medians over the rounds", *names, title="One core for the router")
    rows = [
        ("CPU, request of 1 KB", "requests 1 KB", ("cpu_us",), "{:.0f} µs"),
        ("CPU, request of 200 KB", "requests 200 KB", ("cpu_us",), "{:.0f} µs"),
        ("requests/s of 1 KB", "requests 1 KB", ("per_second",), "{:.0f}"),
        ("CPU, chunk as fast as it goes", "chunks", ("cpu_us",), "{:.1f} µs"),
        ("chunks/s", "chunks", ("per_second",), "{:.0f}"),
        ("CPU, chunk of 200 x 50/s", "chunks paced", ("cpu_us",), "{:.1f} µs"),
        ("first token, added, median", "first token", ("added_ms", "median"), "{:.2f} ms"),
        ("first token, added, p99", "first token", ("added_ms", "p99"), "{:.2f} ms"),
        ("largest process, peak", "memory_mb", ("largest_peak",), "{:.0f} MiB"),
    ]
    for title, phase, path, form in rows:
        cells = (of(rounds, name, phase, *path) for name in names)
        table.add_row(title, *(form.format(median(values)) if values else "" for values in cells))
    growth = (memory.get(name) for name in names)
    table.add_row("growth over many streams", *(f"{g['growth']:.1f} MiB" if g else "" for g in growth))
    if fewer_logs:
        parts = (f"{phase} {cost.cpu_us:.1f} µs ({cost.ratio:.2f})" for phase, cost in fewer_logs.items())
        table.caption = f"sglang-router, once, at log level warn (Plait's CPU over it): {', '.join(parts)}"
    console.print(table)
    columns = ("hit", "owner", "load", "of 64 prompts", "prompts", "queued")
    placed = Table("prefix trace", "router", *columns, title="Placement by prefix")
    for form, found in trace.items():
        for name, p in found.items():
            placed.add_row(
                form,
                name,
                f"{p.hit:.1%}",
                f"{p.owner:.1%}",
                f"{p.computed_worst_to_mean:.2f}",
                f"{p.window_worst_to_mean:.2f}",
                f"{p.requests_worst_to_mean:.2f}",
                f"{p.queued_ms:.1f} ms",
            )
    placed.caption = "owner: went to a longest cached prefix; load: worst engine to mean, computed tokens"
    console.print(placed)
    verdict = Table("figure", "is", "at most", "", title="Plait against sglang-router")
    for bound in bounds(figures):
        value = "not measured" if bound.value is None else f"{bound.value:.2f}"
        verdict.add_row(bound.name, value, f"{bound.most:g}", _mark(bound.kept))
    for name, kept in prefix_verdict(trace).items():
        verdict.add_row(f"prefix trace, {name}", "", "its figures", _mark(kept))
    console.print(verdict)


def _mark(kept: bool) -> str:
    return "[green]yes[/green]" if kept else "[red]no[/red]"
