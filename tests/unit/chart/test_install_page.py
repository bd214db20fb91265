"""docs/install.md names values, files and rows that are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/install.md").read_text()
VALUES: dict[str, Any] = yaml.safe_load((ROOT / "charts/plait/values.yaml").read_text())


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def told() -> list[str]:
    """Values in the first column of the table."""
    rows = re.findall(r"^\| (`.*?) \|", section("Values"), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([\w.*]+)`", row)]


def leaves(values: dict[str, Any], path: str = "") -> list[str]:
    """Paths down to what the page speaks of: images and components as a whole."""
    found = []
    for key, value in values.items():
        where = f"{path}{key}"
        whole = where.startswith(("images.", "operator", "admission", "monitoring.s", "monitoring.d"))
        if isinstance(value, dict) and value and not whole:
            found += leaves(value, f"{where}.")
        else:
            found.append(where)
    return found


@pytest.mark.parametrize("name", told())
def test_every_value_that_is_told_is_there(name: str):
    place: Any = VALUES
    for step in name.removesuffix(".*").split("."):
        assert step in place, name
        place = place[step]


def test_every_value_is_told():
    known = {name.removesuffix(".*") for name in told()}
    assert set(leaves(VALUES)) - known == set()


def test_values_of_commands_are_there():
    for name in re.findall(r"--set ([\w.]+)=", PAGE):
        place: Any = VALUES
        for step in name.split("."):
            place = place[step]


def test_helm_test_waits_for_the_certificate_as_long_as_it_may_take():
    (seen,) = re.findall(r"\(90 to\s+(\d+) s were seen\)", section("Install"))
    (minutes,) = re.findall(r"`helm test` waits for\s+it, (\w+) minutes at most", section("Install"))
    chart = ROOT / "charts/plait"
    (waits,) = re.findall(r"^DEADLINE_S = (\d+)$", (chart / "files/test.py").read_text(), re.MULTILINE)
    (ends,) = re.findall(r"activeDeadlineSeconds: (\d+)", (chart / "templates/tests/test.yaml").read_text())
    assert int(seen) < int(waits) < int(ends)
    assert (minutes, int(waits)) == ("three", 180)


def test_the_upgrade_tells_what_replaces_every_engine():
    (told,) = [p for p in section("Upgrade").split("\n- ") if "images.pullPolicy" in p]
    assert "every engine and every router" in told


def test_files_of_commands_are_there():
    for name in re.findall(r"(?:--filename|--values)\s+([\w./-]*/[\w.-]+)", PAGE):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"`((?:examples/|values-)[\w./-]+)`", PAGE):
        assert (ROOT / "charts/plait" / name).is_file(), name
    for name in re.findall(r"`(tests/[\w./-]+)`", PAGE):
        assert (ROOT / name).is_file(), name
