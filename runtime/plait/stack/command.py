"""`plait up` as the user sees it: what is printed, and the exit status."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from plait.contract.violation import ContractError
from plait.stack.check import violation_table
from plait.stack.display import report_to
from plait.stack.plan import StackOptions, StackPlan, curl_line
from plait.stack.ports import PortError
from plait.stack.supervise import StackError, StopRequested
from plait.stack.up import up

EXIT_DIED = 1
EXIT_REFUSED = 2


def run_up(options: StackOptions, *, port: int | None, state: Path | None, start_timeout_s: float) -> int:
    """Runs a stack in the foreground. Exit status: 0 when the running stack was told to stop, 128 + signal
    when the start was, 1 when a child died or was late, 2 when options or ports were refused."""
    notes = Console(stderr=True)
    was_up = False

    def ready(plan: StackPlan, path: Path) -> None:
        nonlocal was_up
        was_up = True
        console = Console()
        console.print(f"[bold green]ready[/] {plan.router_url}   state: {escape(str(path))}", soft_wrap=True)
        console.print(f"logs:  {escape(str(options.folder))}", soft_wrap=True, highlight=False)
        console.print(curl_line(plan), soft_wrap=True, highlight=False, markup=False)
        console.print("Ctrl-C ends all of it.", highlight=False)

    try:
        up(
            options,
            port=port,
            state=state,
            report=report_to(notes),
            ready=ready,
            start_timeout_s=start_timeout_s,
        )
    except ContractError as error:
        notes.print(violation_table(list(error.violations)))
        return EXIT_REFUSED
    except PortError as error:
        notes.print(f"plait up: {error}", soft_wrap=True, markup=False, highlight=False)
        return EXIT_REFUSED
    except StackError as error:
        notes.print(f"plait up: {error}", soft_wrap=True, markup=False, highlight=False)
        return EXIT_DIED
    except StopRequested as stop:
        notes.print(f"stopped by {stop}: everything has ended", highlight=False)
        return 0 if was_up else 128 + stop.signum
    raise AssertionError("a stack ends only by a signal or a death")
