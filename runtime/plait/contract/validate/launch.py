"""Whether a command line may start an engine: everything that can be told before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from plait.contract.layouts import Layout
from plait.contract.settings import Settings
from plait.contract.shape import ModelShape
from plait.contract.validate.argv import read_engine_argv
from plait.contract.validate.engine import role_of, validate_engine
from plait.contract.violation import ContractError, Violation


def validate_launch(
    flags: Sequence[str], environ: Mapping[str, str], *, engine_version: str | None
) -> list[Violation]:
    """Every reason why `sglang serve <flags>` under `environ` may not start; [] when it may.

    Reads PLAIT_* settings, flags, and the model's config.json where --model-path is a local folder; a model
    that is not on this machine yet is checked when the engine has it.
    """
    found: list[Violation] = []
    settings = None
    try:
        settings = Settings.from_env(environ)
        if settings.layout is Layout.OFF:
            return []
    except ContractError as error:
        found += error.violations
    args, unread = read_engine_argv(flags)
    found += unread
    if settings is None:
        return found
    shape = None
    model = Path(str(args.get("model_path", "")))
    if "model_path" not in args:
        found.append(Violation("--model-path", None, "is missing", "--model-path FOLDER"))
    elif model.exists():
        try:
            shape = ModelShape.from_path(model)
        except ContractError as error:
            found += error.violations
    return found + validate_engine(
        role=role_of(args),
        settings=settings,
        args=args,
        shape=shape,
        engine_version=engine_version,
        environ=environ,
    )
