"""Ways in which a start goes wrong (or right), each in a process of its own: `python start_scenarios.py OUT`.

The engine is imported once (it takes 15 CPU seconds); each scenario is a fork of that process, so what it
breaks stays there. Writes OUT: JSON {scenario: [exit status, stdout, stderr]}. No CUDA needed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

SHARED = {"PLAIT_LAYOUT": "shared"}
MODELS = "sglang.srt.models."
CAUSE = "libflash_of_a_missing_kernel.so: cannot open shared object file"


class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes one module fail while it is imported, as a missing kernel library does."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(CAUSE)


def load() -> None:
    """What every engine process does at its start."""
    from sglang.srt.plugins import load_plugins

    load_plugins()


def tell(**facts: object) -> None:
    print(json.dumps(facts))


# --- each runs in a fork; SystemExit or its end is the outcome ----------------------------------------


def off() -> None:
    os.environ.pop("PLAIT_CPU")
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.plugins.hook_registry import HookRegistry

    before = dict(ATTENTION_BACKENDS)
    load()
    tell(
        hooks=len(HookRegistry._hooks),
        patched=len(HookRegistry._patched),
        backends=before == ATTENTION_BACKENDS,
        modules=sorted(name for name in sys.modules if name.startswith("plait.engine")),
    )


def applied() -> None:
    os.environ |= {**SHARED, "PLAIT_DEBUG_CHECKS": "1"}
    load()
    from plait.engine import install, state
    from plait.engine.targets import TARGETS

    tell(
        applied=sorted(hook.target.path for hook in state.hooks),
        wanted=sorted(target.path for target in TARGETS),
        lost=install.still_applied(),
    )


def taken_back() -> None:
    os.environ |= SHARED
    load()
    from sglang.srt.managers.schedule_policy import PrefillAdder

    from plait.engine import install

    PrefillAdder.add_one_req = PrefillAdder.add_one_req.__wrapped__
    tell(lost=install.still_applied())


def other_version() -> None:
    os.environ |= SHARED
    import importlib.metadata as metadata

    version = metadata.version
    metadata.version = lambda name: "0.5.99" if name == "sglang" else version(name)
    load()


def bad_settings() -> None:
    os.environ |= {"PLAIT_LAYUOT": "shared", "PLAIT_PREFETCH": "maybe"}
    load()


def unknown_fault() -> None:
    os.environ |= {**SHARED, "PLAIT_TEST_FAULT": "shift-mal"}
    load()


def other_engine() -> None:
    """One target gone, one with another signature: both are told."""
    os.environ |= SHARED
    from sglang.srt.layers.cp import base
    from sglang.srt.managers.schedule_policy import PrefillAdder

    def add_one_req(self: object, req: object, has_chunked_req: bool) -> None: ...

    PrefillAdder.add_one_req = add_one_req
    del base.init_cp_strategy
    load()


def unapplied(then: Callable[[], None] = load) -> None:
    """The engine swallows what goes wrong when it applies a hook."""
    os.environ |= SHARED
    from sglang.srt.plugins.hook_registry import HookRegistry

    apply = HookRegistry._apply_target

    def fail_once(target: str, hooks: list[object]) -> None:
        if target.endswith("PrefillAdder.add_one_req"):
            raise RuntimeError("the engine tripped here")
        apply(target, hooks)

    HookRegistry._apply_target = fail_once
    then()


def rehearsal() -> None:
    os.environ |= SHARED
    from plait.engine.rehearsal import main

    main()


def unapplied_rehearsal() -> None:
    from plait.engine.rehearsal import main

    unapplied(main)


def broken_hook_room() -> None:
    """An error inside the plugin, which the engine's loader would swallow."""
    os.environ |= SHARED
    sys.modules["plait.engine.admission"] = None
    load()


def swallowed_import() -> None:
    """What the model's module needs does not import: the engine warns, and would serve a substitute."""
    os.environ |= SHARED
    sys.meta_path.insert(0, Broken(MODELS + "deepseek_v2"))
    load()
    from sglang.srt.models.registry import ModelRegistry

    tell(resolved=[str(one) for one in ModelRegistry.resolve_model_cls(["GlmMoeDsaForCausalLM"])])


def swallowed_import_without_substitute() -> None:
    os.environ |= SHARED
    sys.meta_path.insert(0, Broken(MODELS + "glm4_moe"))
    load()
    from sglang.srt.models.registry import ModelRegistry

    ModelRegistry.models.pop("TransformersForCausalLM", None)
    tell(resolved=[str(one) for one in ModelRegistry.resolve_model_cls(["GlmMoeDsaForCausalLM"])])


def own_class() -> None:
    os.environ |= SHARED
    load()
    from sglang.srt.models.registry import ModelRegistry

    _, name = ModelRegistry.resolve_model_cls(["GlmMoeDsaForCausalLM"])
    tell(resolved=name)


BEFORE_PRELOAD = (off, other_version, bad_settings)
AFTER_PRELOAD = (
    unknown_fault,
    applied,
    taken_back,
    other_engine,
    unapplied,
    rehearsal,
    unapplied_rehearsal,
    broken_hook_room,
    swallowed_import,
    swallowed_import_without_substitute,
    own_class,
)


def run_forked(scenario: Callable[[], None]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            _run(scenario, out.fileno(), err.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return status, out.read(), err.read()


def _run(scenario: Callable[[], None], out: int, err: int) -> NoReturn:
    """End this fork as an interpreter would end: SystemExit gives the status, an exception a traceback."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    status = 0
    try:
        scenario()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def preload() -> None:
    """The stock modules that hooks sit in; not the model registry, which imports every model once and for
    all."""
    from plait.engine.cpu import shim

    shim.apply()
    from plait.engine.targets import TARGETS

    for target in TARGETS:
        module = target.path.partition(":")[0].rpartition(".")[0]
        if ".models." in module:
            continue
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            importlib.import_module(module.rpartition(".")[0])  # the last name is a class
    assert not {MODELS + name for name in ("registry", "glm4_moe", "deepseek_v2")} & set(sys.modules)


def main(target: Path) -> None:
    import sglang.srt.plugins  # noqa: F401

    found = {scenario.__name__: run_forked(scenario) for scenario in BEFORE_PRELOAD}
    preload()
    found |= {scenario.__name__: run_forked(scenario) for scenario in AFTER_PRELOAD}
    target.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
