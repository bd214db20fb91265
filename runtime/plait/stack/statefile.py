"""The state file: where a running stack is, for scripts and tests. Exists only while the stack is up."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from plait.stack.child import Child
from plait.stack.plan import ENGINE_HOST, StackPlan

STATE_VERSION = 1


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ProcessState(_State):
    """One child. `pids`: the child (first) and everything below it when the stack came up; `keeper`: the
    process that answers for them."""

    name: str
    url: str
    port: int
    pid: int
    pids: list[int]
    keeper: int
    log: str


class PrefillState(ProcessState):
    """The prefill group; decode engines find its bootstrap server at `bootstrap_port`."""

    bootstrap_port: int


class StackState(_State):
    """Body of the state file (JSON). `max_total_tokens`: as the prefill group was told; null when its pool
    is as large as the memory allows."""

    version: int = STATE_VERSION
    supervisor: int
    folder: str
    model: str
    cp: int
    layout: str
    split: str
    chunk: int
    context_length: int
    max_total_tokens: int | None
    router: ProcessState
    prefill: list[PrefillState]
    decode: list[ProcessState]


def _process(plan: StackPlan, child: Child) -> dict[str, object]:
    port, pids = child.spec.ports[0], child.pids
    return {
        "name": child.spec.name,
        "url": plan.router_url if child.spec.name == "router" else f"http://{ENGINE_HOST}:{port}",
        "port": port,
        "pid": pids[0] if pids else 0,
        "pids": pids,
        "keeper": child.keeper,
        "log": str(child.spec.log),
    }


def describe(plan: StackPlan, children: dict[str, Child]) -> StackState:
    """The state of a stack that has just come up; `children` by name."""
    options = plan.options
    decode = [name for name in children if name.startswith("decode")]
    return StackState(
        supervisor=os.getpid(),
        folder=str(options.folder),
        model=str(options.model),
        cp=options.cp,
        layout=options.layout,
        split=options.split,
        chunk=options.chunk,
        context_length=options.context_length,
        max_total_tokens=options.max_total_tokens,
        router=ProcessState.model_validate(_process(plan, children["router"])),
        prefill=[
            PrefillState.model_validate(
                {**_process(plan, children["prefill"]), "bootstrap_port": plan.ports.bootstrap}
            )
        ],
        decode=[ProcessState.model_validate(_process(plan, children[name])) for name in decode],
    )


def write_state(path: Path, state: StackState) -> None:
    """Writes the whole file or nothing: a reader never sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(state.model_dump_json(indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def read_state(path: Path) -> StackState:
    """Raises OSError when there is none, ValueError when it is not a state file of this version."""
    return StackState.model_validate_json(path.read_text(encoding="utf-8"))
