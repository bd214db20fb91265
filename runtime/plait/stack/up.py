"""`plait up`: options to a running stack, in the foreground, until it is told to stop."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from plait.contract.violation import ContractError
from plait.stack.display import LiveReport, PlainReport
from plait.stack.plan import ENGINE_HOST, StackOptions, StackPlan, StackPorts, plan_stack
from plait.stack.ports import pick_free, require_free
from plait.stack.refusals import refusals
from plait.stack.statefile import StackState, describe, write_state
from plait.stack.supervise import Supervisor

RUNS = Path(".plait")


def run_folder(root: Path = RUNS) -> Path:
    """An unused absolute path for one run's logs and rank status; made when the first child starts."""
    name = f"run-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder = (root / name).absolute()
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{name}-{number}")
    return folder


def choose_ports(options: StackOptions, *, router: int | None = None) -> StackPorts:
    """The router's port as asked for (PortError when it is taken), all others picked."""
    if router is None:
        (first,) = pick_free(1, host=options.host)
    else:
        first = require_free(router, host=options.host, field="--port")
    prefill, bootstrap, *decode = pick_free(2 + options.decode, host=ENGINE_HOST, taken=[first])
    return StackPorts(first, prefill, bootstrap, tuple(decode))


@contextlib.contextmanager
def running(
    plan: StackPlan,
    *,
    report: PlainReport | LiveReport,
    state: Path,
    start_timeout_s: float = 600.0,
    grace_s: float = 10.0,
) -> Iterator[Supervisor]:
    """A stack that is up inside the block; the state file `state` exists exactly as long.

    Raises as `Supervisor.start` and `Supervisor.check` do.
    """
    written: StackState | None = None
    supervisor = Supervisor(plan.children, report=report, start_timeout_s=start_timeout_s, grace_s=grace_s)
    try:
        with supervisor:
            with report:
                supervisor.start()
            written = describe(plan, {child.spec.name: child for child in supervisor.children})
            write_state(state, written)
            yield supervisor
    finally:
        if written is not None:
            _remove(state, written)


def _remove(path: Path, written: StackState) -> None:
    """Removes our state file; one that another stack has put there since is not ours."""
    with contextlib.suppress(OSError):
        if path.read_text(encoding="utf-8") == written.model_dump_json(indent=2) + "\n":
            path.unlink()


def up(
    options: StackOptions,
    *,
    port: int | None,
    state: Path | None,
    report: PlainReport | LiveReport,
    ready: Callable[[StackPlan, Path], None],
    start_timeout_s: float,
) -> None:
    """Brings a stack up, calls `ready` once it is, and keeps it until a signal or a death ends it.

    Raises ContractError, before anything starts, with all that the engines would refuse.
    """
    plan = plan_stack(options, choose_ports(options, router=port))
    refused = refusals(plan)
    if refused:
        raise ContractError(refused)
    path = (state or options.folder / "state.json").absolute()
    with running(plan, report=report, state=path, start_timeout_s=start_timeout_s) as supervisor:
        ready(plan, path)
        supervisor.wait()
