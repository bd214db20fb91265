"""The page of figures: made from the files, and plain about what was not run."""

from __future__ import annotations

import pytest
from bench import performance
from bench.performance import PAGE, TARGETS, Figure, read, render, verdict, with_worst

LEAST = Figure("f", "f.json", "key", 3.5, True, " GB/s")
MOST = Figure("f", "f.json", "key", 70.0, False)


def test_the_page_is_made_from_the_files() -> None:
    assert PAGE.read_text() == render(PAGE.read_text(), read()), "run: python -m bench.performance"


@pytest.mark.parametrize(
    ("figure", "files", "told"),
    [
        (LEAST, {"f.json": {"key": 3.5}}, "3.5 GB/s"),
        (LEAST, {"f.json": {"key": 3.49}}, "3.49 GB/s (**missed**)"),
        (MOST, {"f.json": {"key": 70.0}}, "70"),
        (MOST, {"f.json": {"key": 70.1}}, "70.1 (**missed**)"),
        (LEAST, {"f.json": {"key": 0}}, "0 GB/s (**missed**)"),
        (LEAST, {}, "**not run**: needs four H200s"),
        (LEAST, {"f.json": {"other": 4}}, "**not run**: needs four H200s"),
        (LEAST, {"f_cp2_h200.json": {"key": 9}}, "**not run**: needs four H200s (on two: 9 GB/s)"),
    ],
)
def test_a_figure_is_kept_missed_or_not_run(
    figure: Figure, files: dict[str, dict[str, float]], told: str
) -> None:
    assert verdict(figure, files) == told


def test_every_target_is_on_the_page_and_its_value_is_the_files() -> None:
    page, files = PAGE.read_text(), read()
    for each in TARGETS:
        assert f"| {each.what} |" in page
        assert f"| {verdict(each, files)} |" in page
    assert len({(each.file, each.key) for each in TARGETS}) == len(TARGETS)


def test_the_ratio_that_stands_beside_the_gathers_figures_is_the_plans() -> None:
    files = read()
    told = files.get("gather.json", {}).get("capacity_ratio")
    assert told in (None, files["capacity.json"]["capacity_ratio"])


def test_every_file_is_listed_with_its_command() -> None:
    page = PAGE.read_text()
    for name, told in read().items():
        assert f"[{name}](figures/{name})" in page
        assert f"`{told['command']}`" in page


def test_making_it_twice_changes_nothing_and_an_unknown_table_is_an_error() -> None:
    files = read()
    once = render(PAGE.read_text(), files)
    assert render(once, files) == once
    with pytest.raises(KeyError):
        render("<!-- nothing -->\n<!-- end -->\n", files)


def test_a_measured_start_is_told() -> None:
    start = {
        "machine": "2 x NVIDIA H200",
        "ranks": 2,
        "layers": 4,
        "dense_tokens": 73728,
        "gather": "peer",
        "shared_tokens": 60_000_000,
        "replicated_tokens": 30_100_000,
        "planned_tokens": 60_000_128,
        "ratio": 0.9967,
    }
    page = render("<!-- measured -->\n<!-- end -->\n", {"capacity.json": {"measured": start}})
    for part in ("2 x NVIDIA H200", "60,000,000 tokens", "0.9967", "60,000,128"):
        assert part in page
    assert "**Not run**" in render("<!-- measured -->\n<!-- end -->\n", {"capacity.json": {}})


def test_only_runs_beside_a_second_replicated_one_are_compared() -> None:
    rows = [
        {"own_spread": 0.0, "shared": 0.0, "same_id": True},
        {"own_spread": 0.0, "shared": 0.0, "same_id": False},
        {"own_spread": 0.0, "shared": 0.25, "same_id": True},
        {"own_spread": 1.5, "shared": 0.0, "same_id": True},
    ]
    told = {"cp": 2, "backend": "flashmla_kv", "cache": "fp8_e4m3, page 64", "rows": rows}
    files = {"a.json": told, "b.json": {"rows": [{"ratio": 1}]}, "c.json": {}}
    page = render("<!-- equality -->\n<!-- end -->\n", files)
    assert "| [a.json](figures/a.json) | CP 2, flashmla_kv, fp8_e4m3 | 4 | 3 | 1 | 1.50 | 0.25 |" in page
    assert "b.json" not in page
    assert performance.PAGE.exists()


def test_of_several_ways_to_gather_the_worst_counts() -> None:
    same = {"auto": True, "copy": True}
    rows = [
        {"own_spread": 0.0, "shared": {"auto": 0.0, "copy": 0.0}, "shared_ids": same},
        {"own_spread": 0.0, "shared": {"auto": 0.0, "copy": 0.5}, "shared_ids": same},
        {"own_spread": 0.0, "shared": {"auto": 0.0, "copy": 0.0}, "shared_ids": same | {"copy": False}},
        {"own_spread": 2.0, "shared": {"auto": 0.1, "copy": 0.0}, "shared_ids": same},
    ]
    page = render("<!-- equality -->\n<!-- end -->\n", {"a.json": {"rows": rows}})
    assert "| [a.json](figures/a.json) |  | 4 | 3 | 1 | 2.00 | 0.50 |" in page


def test_of_kernels_the_worst_counts() -> None:
    def row(rows: int, of_copy: float, faster: float) -> dict[str, float]:
        return {"rows": rows, "of_copy": of_copy, "faster_than_reference": faster}

    told = with_worst({"table": [row(8192, 0.9, 3.0), row(32768, 0.71, 9.0), row(64, 0.1, 0.1)]})
    assert (told["least_copy_share"], told["least_over_torch"]) == (0.71, 3.0)
    shown = [verdict(each, {"kernels.json": told}) for each in TARGETS if each.file == "kernels.json"]
    assert shown == ["0.71", "3"]
    assert with_worst({"rows": []}) == {"rows": []}
