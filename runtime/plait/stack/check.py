"""`plait check`: a stack's configuration file against the contract, for people and for scripts."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from plait.contract.validate import validate_file
from plait.contract.violation import Violation


def run_check(path: Path, *, as_json: bool) -> int:
    """Prints all violations of the file; exit status 0 when there is none, 1 otherwise."""
    found = validate_file(path)
    if as_json:
        rows = [{**each._asdict(), "value": _plain(each.value)} for each in found]
        print(json.dumps({"file": str(path), "ok": not found, "violations": rows}, indent=2))
    elif not found:
        Console().print(Text(f"{path}: nothing to object to", "green"), soft_wrap=True)
    else:
        console = Console()
        console.print(violation_table(found))
        console.print(Text(f"{path}: {len(found)} to correct", "bold red"), soft_wrap=True)
    return 1 if found else 0


def violation_table(violations: list[Violation]) -> Table:
    """All violations, one a row. Texts are shown as they are, whatever brackets they hold."""
    table = Table(show_lines=True)
    table.add_column("field", overflow="fold", style="bold")
    table.add_column("value", overflow="fold")
    table.add_column("why not", overflow="fold", ratio=2)
    table.add_column("instead", overflow="fold", ratio=1)
    for each in violations:
        value = "" if each.value is None else repr(each.value)
        table.add_row(*(Text(cell) for cell in (each.field, value, each.reason, each.fix)))
    return table


def _plain(value: object) -> object:
    """`value` as JSON can hold it."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
