"""What happens once per process: checks of arguments and model, identity of the group, status."""

from __future__ import annotations

import dataclasses
import importlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from plait.contract.layouts import Layout, Role
from plait.contract.shape import DSA_ARCHITECTURES
from plait.engine import identity, state, status
from plait.engine.check import refuse_arguments, refuse_resolved
from plait.engine.entry import stop
from plait.engine.install import implements, still_applied
from plait.engine.integrity import IntegrityCheck


@implements("server_args.ServerArgs.__post_init__")
def check_arguments(original: Callable[[Any], None], self: Any) -> None:
    """Refuse what Plait cannot serve, as the user wrote it: the engine's resolution changes many fields."""
    refuse_arguments(_fields(self))
    original(self)
    refuse_resolved(_fields(self))


def _fields(arguments: Any) -> dict[str, object]:
    return {f.name: getattr(arguments, f.name) for f in dataclasses.fields(arguments) if f.init}


@implements("models.registry._ModelRegistry.resolve_model_cls")
def refuse_substitute(
    original: Callable[..., tuple[type, str]], self: Any, architectures: Any
) -> tuple[type, str]:
    """A sparse-attention model must be served by its own class, or not at all."""
    asked = next(iter([architectures] if isinstance(architectures, str) else architectures), None)
    if asked not in DSA_ARCHITECTURES:
        return original(self, architectures)
    try:
        found, architecture = original(self, architectures)
    except ValueError:  # not even a substitute: the engine would list all it has, not why this one is missing
        stop(f"the engine has no class for {asked}: its own could not be imported: {import_error(asked)}")
    if architecture != asked:
        stop(
            f"the engine would serve {asked} with {architecture}, because the model's own class could not "
            f"be imported: {import_error(asked)}"
        )
    return found, architecture


def import_error(architecture: str) -> str:
    """Why the engine's module that defines `architecture` does not import, in words."""
    package = importlib.import_module("sglang.srt.models")
    for source in sorted(path for folder in package.__path__ for path in Path(folder).glob("*.py")):
        if f"class {architecture}(" not in source.read_text(encoding="utf-8"):
            continue
        name = f"{package.__name__}.{source.stem}"
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"{name}: {type(error).__name__}: {error}"
        return f"{name} imports now, but did not when the engine looked"
    return "no module of this engine defines it"


@implements("entrypoints.http_server.launch_server")
def serve_status(server_args: Any, *args: Any, **kwargs: Any) -> None:
    """Before the engine starts its processes: a folder for their figures, and the route that shows them."""
    del args, kwargs
    from sglang.srt.entrypoints import http_server

    folder = state.settings.state_dir or Path(tempfile.mkdtemp(prefix="plait-"))
    folder = folder / f"{identity.role(server_args).value}-{server_args.port}"
    status.clear(folder)
    # Spawned processes read the variable, forked ones have these settings already.
    os.environ["PLAIT_STATE_DIR"] = str(folder)
    state.settings = dataclasses.replace(state.settings, state_dir=folder)
    status.add_routes(http_server.app, folder=folder, ranks=server_args.attn_cp_size)


@implements("managers.scheduler.Scheduler.init_disaggregation")
def note_pool(self: Any) -> None:
    """The pools exist: what they store is part of the contract that the handshake carries."""
    runner = self.tp_worker.model_runner
    state.kv_dtype = runner.kv_cache_dtype
    if state.settings.layout.splits and (state.pool is None or state.allocator is None):
        stop(
            "the engine built its KV pool or page allocator without Plait's class, so its cache would not be "
            f"{state.settings.layout.value}"
        )
    lost = still_applied()
    if lost:
        stop(f"hooks were taken back after they had been applied: {', '.join(lost)}")
    _agree_on_group()


def _agree_on_group() -> None:
    """Every rank of the group must be the same engine with the same settings."""
    if state.group().ranks == 1:
        return
    from sglang.srt.runtime_context import get_parallel

    mine = identity.group_contract()
    told: list[Any] = [None] * state.group().ranks
    dist.all_gather_object(told, mine, group=get_parallel().attn_cp_group.cpu_group)
    from plait.contract.kv import diff

    for rank, other in enumerate(told):
        if other.hash != mine.hash:
            differing = ", ".join(f"{d.field} ({d.left} here, {d.right} there)" for d in diff(mine, other))
            stop(f"rank {rank} of this group has another contract: {differing}")


@implements("managers.scheduler.Scheduler.__init__")
def start_status(result: None, self: Any, *args: Any, **kwargs: Any) -> None:
    """This rank is up: its figures, and its page accounting where the pages are Plait's."""
    del result, args, kwargs
    if state.settings.layout.splits:
        state.integrity = IntegrityCheck(self)
    if state.settings.layout is Layout.SHARED and identity.role(self.server_args) is not Role.PREFILL:
        stop("only a prefill engine can have the shared layout (--disaggregation-mode prefill)")
    folder = state.settings.state_dir
    if folder is None:
        stop("PLAIT_STATE_DIR is not set in a scheduler process: the engine was not started by its server")
    state.status = status.StatusWriter(self, folder)
    state.status.start()


@implements("managers.tokenizer_control_mixin.TokenizerControlMixin.open_session")
async def refuse_session(original: Callable[..., Any], self: Any, obj: Any, request: Any = None) -> Any:
    """Sessions need no flag in the engine, so they are refused where they begin."""
    if not state.settings.layout.splits:
        return await original(self, obj, request)
    raise ValueError(
        "sessions are refused by an engine with Plait's layout: no test has shown them with owned pages. "
        "Fix: send the whole conversation in each request (its prefix is cached)"
    )
