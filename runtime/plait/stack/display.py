"""How a start looks: a live table on a terminal, a line per change anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from plait.stack.child import ChildView

_STYLE = {"starting": "yellow", "ready": "green", "stopping": "yellow", "ended": "red"}


class PlainReport:
    """One line whenever a child's phase changes, to `console`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, str] = {}

    def __enter__(self) -> PlainReport:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, children: Sequence[ChildView]) -> None:
        for child in children:
            if self._shown.get(child.name) != child.phase:
                self._shown[child.name] = child.phase
                after = f" after {child.seconds:.1f} s" if child.phase == "ready" else ""
                self._console.print(f"{child.name:<10} {child.phase}{after}", highlight=False)


class LiveReport:
    """A table that is redrawn in place: name, phase, seconds, and what each child last said."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._spinners: dict[str, Spinner] = {}

    def __enter__(self) -> LiveReport:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, children: Sequence[ChildView]) -> None:
        self._live.update(self._table(children))

    def _table(self, children: Sequence[ChildView]) -> Table:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for child in children:
            style = _STYLE[child.phase]
            phase: Text | Spinner = Text(child.phase, style=style)
            if child.phase == "starting":
                phase = self._spinners.setdefault(child.name, Spinner("dots", text="starting", style=style))
            said = f"{child.note}: {child.last_line}" if child.phase == "starting" else ""
            table.add_row(Text(child.name, style="bold"), phase, f"{child.seconds:.0f} s", Text(said, "dim"))
        return table


def report_to(console: Console | None = None) -> PlainReport | LiveReport:
    """The report that fits `console` (standard error if none is given)."""
    console = console or Console(file=sys.stderr)
    return LiveReport(console) if console.is_terminal else PlainReport(console)
