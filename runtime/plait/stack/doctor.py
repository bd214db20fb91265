"""`plait doctor`: settings in force, hooks and their state, versions, and what this machine can do."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from plait.contract.layouts import Layout
from plait.contract.settings import Settings
from plait.contract.violation import ContractError
from plait.stack.check import violation_table
from plait.stack.hooks import HookReport, try_hooks
from plait.stack.machine import Fact, cuda, hardware, libraries, versions


class Findings(NamedTuple):
    """All that the doctor found. `hooks` None: not tried. `tried`: the settings they were tried with."""

    facts: dict[str, list[Fact]]
    settings: Settings | None
    refused: ContractError | None
    hooks: HookReport | None
    tried: Mapping[str, str]

    @property
    def healthy(self) -> bool:
        sound = all(fact.ok for facts in self.facts.values() for fact in facts)
        return sound and self.refused is None and not (self.hooks and self.hooks.trouble)


def rehearsed(settings: Settings, *, on_cpu: bool) -> dict[str, str]:
    """The settings to try the hooks with: those in force, or the shared layout where Plait is off."""
    layout = settings.layout if settings.layout is not Layout.OFF else Layout.SHARED
    return dataclasses.replace(settings, layout=layout, cpu=settings.cpu or on_cpu).to_env()


def examine(*, hooks: bool) -> Findings:
    """Looks at everything; with `hooks` it also loads the engine's plugins in a process of its own."""
    gpu = cuda()
    facts = {
        "versions": versions(),
        "machine": [*hardware(), *gpu],
        "libraries": libraries(),
    }
    try:
        settings = Settings.from_env()
    except ContractError as error:
        return Findings(facts, None, error, None, {})
    tried = rehearsed(settings, on_cpu=not gpu)
    return Findings(facts, settings, None, try_hooks(tried) if hooks else None, tried)


def run_doctor(*, hooks: bool, as_json: bool) -> int:
    """Prints the findings; exit status 0 when nothing is missing, 1 otherwise."""
    notes = Console(stderr=True)
    if hooks and not as_json:
        notes.print(
            "trying the hooks on the installed engine (half a minute; --no-hooks leaves it out)", style="dim"
        )
    found = examine(hooks=hooks)
    if as_json:
        print(json.dumps(as_data(found), indent=2))
    else:
        show(found, Console())
    return 0 if found.healthy else 1


def as_data(found: Findings) -> dict[str, object]:
    """The findings as JSON can hold them."""
    return {
        "healthy": found.healthy,
        **{title: [fact._asdict() for fact in facts] for title, facts in found.facts.items()},
        "settings": [row._asdict() for row in found.settings.describe()] if found.settings else [],
        "refused": [violation._asdict() for violation in found.refused.violations] if found.refused else [],
        "hooks": None
        if found.hooks is None
        else {
            "tried_with": dict(found.tried),
            "trouble": found.hooks.trouble,
            "applied": [hook._asdict() for hook in found.hooks.hooks],
        },
    }


def show(found: Findings, console: Console) -> None:
    """The findings as tables."""
    for title, facts in found.facts.items():
        table = Table(title=title, title_justify="left", show_header=False)
        for fact in facts:
            table.add_row(fact.name, Text(fact.value, "" if fact.ok else "bold red"))
        console.print(table)
    if found.refused is not None:
        console.print(Text("the PLAIT_* settings are refused", "bold red"))
        console.print(violation_table(list(found.refused.violations)))
    if found.settings is not None:
        console.print(_settings_table(found.settings))
    if found.hooks is not None:
        console.print(_hooks_table(found.hooks, found.tried))
    verdict = (
        Text("nothing is missing", "bold green") if found.healthy else Text("see what is red", "bold red")
    )
    console.print(verdict)


def _settings_table(settings: Settings) -> Table:
    table = Table(title="settings in force", title_justify="left")
    for name in ("variable", "value", "default", "what it does"):
        table.add_column(name, overflow="fold")
    for row in settings.describe():
        changed = "bold" if row.value != row.default else ""
        value = f"{row.value} (set)" if row.name in os.environ else row.value
        table.add_row(Text(row.name), Text(value, changed), Text(row.default), Text(row.does))
    return table


def _hooks_table(report: HookReport, tried: Mapping[str, str]) -> Table:
    with_ = " ".join(f"{name}={value}" for name, value in sorted(tried.items()))
    table = Table(title=f"hooks, tried with {with_}", title_justify="left")
    for name in ("target", "kind", "state", "why"):
        table.add_column(name, overflow="fold")
    if report.trouble:
        table.add_row("", "", Text("failed", "bold red"), Text(report.trouble, "red"))
    for hook in report.hooks:
        target = Text(hook.target.removeprefix("sglang.srt."))
        table.add_row(target, hook.kind, Text("applied", "green"), Text(hook.why))
    return table
