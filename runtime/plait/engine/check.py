"""Refusals at start, from the one validator of the contract: before torch, and again inside the engine."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from plait.contract.layouts import Layout
from plait.contract.settings import variable
from plait.contract.shape import ModelShape
from plait.contract.validate import (
    Violation,
    role_of,
    validate_engine,
    validate_launch,
    validate_resolved,
)
from plait.contract.violation import ContractError
from plait.engine import state
from plait.engine.entry import stop

_PLUGIN_GROUP, _PLUGIN = "sglang.srt.plugins", "plait"


def refuse_or_pass(flags: Sequence[str], environ: Mapping[str, str]) -> None:
    """Return if `sglang` may start with these flags; else end the process with every violation at once."""
    found = validate_launch(flags, environ, engine_version=engine_version())
    _stop_on([*found, *plugin_left_out(environ)])


def refuse_arguments(args: Mapping[str, object]) -> None:
    """The same check over ServerArgs fields as the user gave them, inside the engine's own process."""
    shape: ModelShape | None = None
    found: list[Violation] = []
    revision = args.get("revision")
    try:
        shape = model_shape(
            str(args.get("model_path", "")), revision=None if revision is None else str(revision)
        )
    except ContractError as error:
        found += error.violations
    found += validate_engine(
        role=role_of(args),
        settings=state.settings,
        args=args,
        shape=shape,
        engine_version=engine_version(),
        environ=os.environ,
    )
    _stop_on(found)


def model_shape(model_path: str, *, revision: str | None) -> ModelShape:
    """Shape of the model that --model-path names: a local path, or a hub id at `revision`.

    Raises ContractError when there is no config.json to be had, or it is malformed.
    """
    return ModelShape.from_path(config_file(model_path, revision=revision))


def config_file(model_path: str, *, revision: str | None) -> Path:
    """The config.json of a model, or the folder that holds it; it is not read yet.

    Only where the engine itself runs: a hub id is looked up as the engine does it, in the local cache and
    then, unless that is offline, at the hub. Raises ContractError when there is none to be had.
    """
    if model_path and Path(model_path).exists():
        return Path(model_path)
    # Costs seconds, and the check before torch must not pay them.
    from transformers.utils import cached_file

    why = "it is neither a local path nor a hub id with a config.json"
    try:
        file = cached_file(model_path, "config.json", revision=revision)
    except Exception as error:  # whatever kept it from us (network, rights, cache), the user must hear of it
        file, why = None, " ".join(str(error).split())
    if file is None:
        at = "" if revision is None else f" at revision {revision!r}"
        fix = "a model's local folder, or a hub id whose config.json is in the local cache or can be fetched"
        raise ContractError([Violation("--model-path", model_path, f"cannot be resolved{at}: {why}", fix)])
    return Path(file)


def refuse_resolved(args: Mapping[str, object]) -> None:
    """What the engine has made of its arguments must still be something that Plait serves."""
    _stop_on(validate_resolved(args))


def engine_version() -> str | None:
    """Version of the installed sglang, None if there is none."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def plugin_left_out(environ: Mapping[str, str]) -> list[Violation]:
    """Why the engine's loader would go on without the plugin, and serve as stock without a word."""
    if environ.get(variable("layout"), Layout.OFF) == Layout.OFF:
        return []
    found = []
    if not [e for e in importlib.metadata.entry_points(group=_PLUGIN_GROUP) if e.name == _PLUGIN]:
        reason = f"this Python has no entry point {_PLUGIN!r} in it, so the engine would not find the plugin"
        found.append(Violation(_PLUGIN_GROUP, None, reason, f"pip install plait for {sys.executable}"))
    chosen = environ.get("SGLANG_PLUGINS", "")
    names = [name for name in map(str.strip, chosen.split(",")) if name]
    if names and _PLUGIN not in names:
        reason = "the engine loads the named plugins only, and would start without Plait"
        fix = f"{','.join([*names, _PLUGIN])}, or unset it"
        found.append(Violation("SGLANG_PLUGINS", chosen, reason, fix))
    return found


def _stop_on(found: Sequence[Violation]) -> None:
    if found:
        lines = "\n".join(f"  {violation}" for violation in found)
        stop(f"this engine is refused ({len(found)} {'reason' if len(found) == 1 else 'reasons'}):\n{lines}")
