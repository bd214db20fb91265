"""The tables of docs/performance.md, made from docs/figures/*.json: `python -m bench.performance`.

A table stands between `<!-- NAME -->` and `<!-- end -->`; what is around them is written by hand. A figure
whose file is not there is told as not run, so that nothing has to be remembered when it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/performance.md"
FIGURES = ROOT / "docs/figures"
_BLOCK = re.compile(r"(<!-- (?P<name>[a-z-]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_OTHER_PAGES = {"router.json": "router.md", "operator_scale.json": "scale.md"}
"""Figures that have a page of their own."""
_LEAST_ROWS = 8192
_ON_TWO = "_cp2_h200.json"
"""In place of .json: the same figures of a run on two GPUs, which no bound is about."""

Files = Mapping[str, Mapping[str, Any]]


class Figure(NamedTuple):
    """One figure with a bound. `file`, `key`: where it is. `least`: the bound is a least one, else a most.

    `needs`: what it takes to measure it.
    """

    what: str
    file: str
    key: str
    bound: float
    least: bool
    unit: str = ""
    needs: str = "four H200s"


TARGETS = (
    Figure(
        "capacity, shared over N x stock, dense budget of 128K", "capacity.json", "capacity_ratio", 0.95, True
    ),
    Figure("gather at 32K, times the baseline", "gather.json", "ratio_32k", 3.5, True),
    Figure("gather at 128K, times the baseline", "gather.json", "ratio_128k", 3.0, True),
    Figure("gather at 512K, remote bytes of a rank", "gather.json", "gbps_512k", 350.0, True, " GB/s"),
    Figure("exposed time of a layer at 128K", "gather.json", "exposed_us_128k", 70.0, False, " µs"),
    Figure(
        "prefill step, 8K new tokens on 128K, over replicated",
        "prefill_step.json",
        "step_8k_on_128k",
        1.03,
        False,
    ),
    Figure(
        "prefill step, 64 new tokens on 128K, over replicated",
        "prefill_step.json",
        "step_64_on_128k",
        1.05,
        False,
    ),
    Figure(
        "KV movement of a layer, stock's layer split over ours, 6 M-token pool",
        "layer_split.json",
        "kv_movement_ratio",
        5.0,
        True,
    ),
    Figure(
        "kernels, least share of copy bandwidth from 8K rows on",
        "kernels.json",
        "least_copy_share",
        0.7,
        True,
        needs="one H200",
    ),
    Figure("kernels, least gain over torch", "kernels.json", "least_over_torch", 3.0, True, needs="one H200"),
)
"""What has to be shown."""


def read(folder: Path = FIGURES) -> dict[str, Any]:
    """All figures, by the name of their file."""
    return {path.name: with_worst(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))}


def with_worst(told: dict[str, Any]) -> dict[str, Any]:
    """Of kernels (tests/gpu/kernels_on_gpu.py) with the worst of their table beside it, if any."""
    table = [row for row in told.get("table", []) if row.get("rows", 0) >= _LEAST_ROWS and "of_copy" in row]
    if not table:
        return told
    worst = {"least_copy_share": "of_copy", "least_over_torch": "faster_than_reference"}
    return {**told, **{key: min(row[column] for row in table) for key, column in worst.items()}}


def render(page: str, files: Files) -> str:
    """`page` with its tables made anew. Raises KeyError for a table that has no maker."""
    return _BLOCK.sub(lambda m: f"{m[1]}\n" + "\n".join(_TABLES[m["name"]](files)) + f"\n\n{m[3]}", page)


def verdict(figure: Figure, files: Files) -> str:
    """What is known of it: the value, and whether its bound is kept."""
    told = files.get(figure.file, {}).get(figure.key)
    if told is None:
        on_two = files.get(figure.file.replace(".json", _ON_TWO), {}).get(figure.key)
        beside = "" if on_two is None else f" (on two: {on_two:g}{figure.unit})"
        return f"**not run**: needs {figure.needs}{beside}"
    kept = told >= figure.bound if figure.least else told <= figure.bound
    return f"{told:g}{figure.unit}" + ("" if kept else " (**missed**)")


def _targets(files: Files) -> Iterator[str]:
    yield "| figure | must be | is | file and key |"
    yield "|---|---|---|---|"
    for each in TARGETS:
        bound = f"{'at least' if each.least else 'at most'} {each.bound:g}{each.unit}"
        yield f"| {each.what} | {bound} | {verdict(each, files)} | `{each.file}`: `{each.key}` |"


def _capacity(files: Files) -> Iterator[str]:
    told = files["capacity.json"]
    yield "| ranks | gather | dense budget | set aside | tokens, shared | N x stock | ratio | 0.95 from |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in told["rows"]:
        mark = "" if row["kv_bytes_from"] == row["ranks"] else " ¹"
        yield (
            f"| {row['ranks']}{mark} | {row['gather']} | {row['dense_tokens'] // 1024}K | "
            f"{row['aside_bytes'] / 1e9:.2f} GB | {row['shared_tokens']:,} | "
            f"{row['ranks']} x {row['stock_tokens']:,} | {row['ratio']:.4f} | "
            f"{row['least_kv_bytes'] / 1e9:.1f} GB |"
        )


def _measured(files: Files) -> Iterator[str]:
    told = files["capacity.json"].get("measured")
    if told is None:
        yield "**Not run**: no start of two engines, one of each layout, has been measured against the plan."
        return
    yield (
        f"Measured on {told['machine']}: {told['ranks']} ranks, {told['layers']} layers, a dense budget of "
        f"{told['dense_tokens']:,} tokens, gathered by {told['gather']}: {told['shared_tokens']:,} tokens "
        f"shared and {told['replicated_tokens']:,} replicated, a ratio of {told['ratio']:.4f}. Of the "
        f"replicated one's memory the plan makes {told['planned_tokens']:,}."
    )


def _equality(files: Files) -> Iterator[str]:
    yield (
        "| run | of | cases | replicated repeats itself | of these, shared is equal "
        "| worst own | worst shared |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, told in files.items():
        rows = told.get("rows", [])
        if not rows or "own_spread" not in rows[0]:
            continue
        same = [row for row in rows if row["own_spread"] == 0]
        equal = sum(_worst(row["shared"]) == 0 and _all_equal(row) for row in same)
        own, shared = (max(_worst(row[key]) for row in rows) for key in ("own_spread", "shared"))
        link, counts = f"[{name}](figures/{name})", (len(rows), len(same), equal)
        cells = (link, _engine(told), *counts, f"{own:.2f}", f"{shared:.2f}")
        yield f"| {' | '.join(map(str, cells))} |"


def _engine(told: Mapping[str, Any]) -> str:
    """What was run: ranks, kernel, cache."""
    words = (f"CP {told['cp']}" if "cp" in told else "", told.get("backend", ""), told.get("cache", ""))
    return ", ".join(str(word).split(",")[0] for word in words if word)


def _worst(spread: float | Mapping[str, float]) -> float:
    """Of a run with several ways to gather, the worst of them."""
    return max(spread.values()) if isinstance(spread, Mapping) else spread


def _all_equal(row: Mapping[str, Any]) -> bool:
    """Whether the shared layout gave the replicated one's ids, in every way it was asked in."""
    told = row["shared_ids"] if "shared_ids" in row else row["same_id"]
    return all(told.values()) if isinstance(told, Mapping) else bool(told)


def _files(files: Files) -> Iterator[str]:
    yield "| file | measured on | command |"
    yield "|---|---|---|"
    for name, told in files.items():
        page = _OTHER_PAGES.get(name)
        machine = told.get("machine", "no machine: arithmetic")
        where = f"see [{page}]({page})" if page else str(machine)
        yield f"| [{name}](figures/{name}) | {where} | `{told['command']}` |"


_TABLES: dict[str, Callable[[Files], Iterator[str]]] = {
    "targets": _targets,
    "capacity": _capacity,
    "measured": _measured,
    "equality": _equality,
    "files": _files,
}


def main() -> int:
    """Write the page anew."""
    PAGE.write_text(render(PAGE.read_text(), read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
