"""Put the hooks on, and prove that they took: by name and signature before, by identity after.

The engine applies hooks itself, after every plugin ran, and swallows what goes wrong there. So its
`HookRegistry.apply_hooks` is wrapped: what follows it is our check, and a hook that did not take ends
the process with a message that names it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from plait.contract.layouts import Layout
from plait.contract.settings import Settings
from plait.engine import state
from plait.engine.entry import stop
from plait.engine.targets import ENGINE_VERSION, TARGETS, Kind, Target

_ROOMS = (
    "plait.engine.start",
    "plait.engine.strategy",
    "plait.engine.pool",
    "plait.engine.peers",
    "plait.engine.allocator",
    "plait.engine.page_hooks",
    "plait.engine.forward",
    "plait.engine.index_path",
    "plait.engine.tail",
    "plait.engine.admission",
    "plait.engine.transfer",
    "plait.engine.fences",
    "plait.engine.integrity",
    "plait.engine.debug",
)
_CPU_ROOMS = (
    "plait.engine.cpu.comm",
    "plait.engine.cpu.idle",
    "plait.engine.cpu.processes",
    "plait.engine.cpu.rope",
    "plait.engine.cpu.indexer",
    "plait.engine.cpu.backend",
    "plait.engine.cpu.stores",
)

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {}


class Applied(NamedTuple):
    """A hook that is in force: what stood there before, and what stands there now."""

    target: Target
    original: object
    hooked: object


def implements(path: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Name the target (as in `targets.TARGETS`, without `sglang.srt.`) that the decorated hook is for."""

    def register(hook: Callable[..., Any]) -> Callable[..., Any]:
        IMPLEMENTATIONS[f"sglang.srt.{path}"] = hook
        return hook

    return register


def install(settings: Settings) -> None:
    """Check and register every hook that `settings` asks for. Ends the process when one cannot be."""
    check_engine_version()
    check_test_fault(settings)
    if settings.cpu:
        from plait.engine.cpu import shim

        shim.apply()
    state.settings = settings
    if settings.layout is not Layout.OFF:
        # Each rank sends the pages it owns, and decode asks all of them. Without this a decode engine would
        # take rank 0's pages for the whole prompt. Read by the engine when its transfer manager is made.
        os.environ.setdefault("SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER", "true")
    rooms = (*(_ROOMS if settings.layout is not Layout.OFF else ()), *(_CPU_ROOMS if settings.cpu else ()))
    for room in rooms:
        importlib.import_module(room)
    wanted = [
        t for t in TARGETS if t.wanted(layout=settings.layout, cpu=settings.cpu, debug=settings.debug_checks)
    ]
    missing = [t.path for t in wanted if t.path not in IMPLEMENTATIONS]
    if missing:
        stop(f"no hook is written for {', '.join(missing)}")
    faults = [fault for t in wanted if (fault := signature_fault(t))]
    if faults:
        stop("this engine is not the one Plait's hooks were written for:\n" + "\n".join(faults))
    originals = {t.path: current(t) for t in wanted}
    _register(wanted)
    _verify_after_apply(wanted, originals)


def check_engine_version() -> None:
    """Stop unless the installed engine is the one version whose targets were read."""
    found = importlib.metadata.version("sglang")
    if found != ENGINE_VERSION:
        stop(
            f"sglang {found} is installed, but Plait's hooks are written for sglang {ENGINE_VERSION}. "
            f"Fix: pip install sglang=={ENGINE_VERSION}"
        )


def check_test_fault(settings: Settings) -> None:
    """Stop on a PLAIT_TEST_FAULT that no code reads: a control that does nothing would prove nothing."""
    fault = settings.test_fault
    if fault is None:
        return
    from plait.engine.faults import FROM_FILE, KNOWN

    if fault.name not in (*KNOWN, FROM_FILE):
        stop(
            f"PLAIT_TEST_FAULT = {str(fault)!r}: no code puts in a fault of this name. Fix: one of "
            f"{', '.join(KNOWN)}, or {FROM_FILE}:PATH (the name is read from a file)"
        )
    if fault.name == FROM_FILE and not Path(fault.arg).is_absolute():
        stop(f"PLAIT_TEST_FAULT = {str(fault)!r}: not an absolute path. Fix: {FROM_FILE}:/absolute/path")


def current(target: Target) -> object:
    """The object that stands at a target now. Raises LookupError when nothing does."""
    path, _, key = target.path.partition(":")
    try:
        owner = pkgutil.resolve_name(path.rpartition(".")[0])
        # A class attribute must be read without the descriptor protocol, or a function would compare
        # unequal to itself.
        name = path.rpartition(".")[2]
        found = inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name)
        return found[key] if key else found
    except (ImportError, AttributeError, KeyError) as error:
        raise LookupError(f"{target.path}: {type(error).__name__}: {error}") from error


def signature_fault(target: Target) -> str | None:
    """Why the hook cannot sit on its target (missing, or other parameters), or None."""
    try:
        found = current(target)
    except LookupError as error:
        return f"hook target is missing: {error}"
    if target.parameters is None:
        return None
    names = tuple(inspect.signature(_function(found)).parameters)
    if names == target.parameters:
        return None
    return (
        f"hook target has another signature: {target.path} takes ({', '.join(names)}), "
        f"Plait was written for ({', '.join(target.parameters)})"
    )


def _function(found: Any) -> Callable[..., Any]:
    """The plain function behind a class (its `__init__`), a class method or a static method."""
    if isinstance(found, type):
        found = found.__init__  # type: ignore[misc]
    function: Callable[..., Any] = getattr(found, "__func__", found)
    return function


def _register(targets: list[Target]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    kinds = {
        Kind.AROUND: HookType.AROUND,
        Kind.AFTER: HookType.AFTER,
        Kind.BEFORE: HookType.BEFORE,
        Kind.REPLACE: HookType.REPLACE,
    }
    for target in targets:
        hook = IMPLEMENTATIONS[target.path]
        if target.kind is Kind.ITEM:
            path, _, key = target.path.partition(":")
            pkgutil.resolve_name(path)[key] = hook
        else:
            HookRegistry.register(target.path, hook, kinds[target.kind])


def _verify_after_apply(targets: list[Target], originals: dict[str, object]) -> None:
    """Wrap the engine's apply step, so that our check is what follows it, however it ended."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    apply: Callable[[], None] = HookRegistry.apply_hooks

    def apply_and_verify(_: type) -> None:
        apply()
        failed = []
        for target in targets:
            now = current(target)
            if now is originals[target.path] and now is not IMPLEMENTATIONS[target.path]:
                failed.append(target.path)
            else:
                state.hooks.append(Applied(target, originals[target.path], now))
        if failed:
            stop(
                "the engine did not apply these hooks (its own log has the reason, under "
                f"'Failed to apply hooks'): {', '.join(failed)}"
            )

    HookRegistry.apply_hooks = classmethod(apply_and_verify)


def still_applied() -> list[str]:
    """Targets that no longer hold what was applied (another plugin, or a late re-import, took them back)."""
    return [a.target.path for a in state.hooks if current(a.target) is not a.hooked]
