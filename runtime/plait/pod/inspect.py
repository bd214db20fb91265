"""`python3 -m plait.pod.inspect --model M`: what config.json says of a model. See the room's docstring."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from plait.contract.shape import CONFIG_FIELDS, ModelShape
from plait.contract.verdict import MESSAGE_LIMIT, Inspected, Trouble
from plait.contract.violation import ContractError
from plait.engine.check import config_file
from plait.pod.arguments import seconds
from plait.pod.deadline import Deadline, Waiting
from plait.pod.message import TERMINATION_LOG, leave

FIELDS = tuple(name for name in CONFIG_FIELDS if name != "quantization_config")
"""What is kept as it is; of quantization_config only the method is kept, for it may be very long."""


def inspect(model: str, revision: str | None) -> Inspected:
    """The fields of a folder's or a hub repository's config.json. What is wrong is told, not raised."""
    try:
        file = config_file(model, revision=revision)
        shape = ModelShape.from_path(file)
    except ContractError as error:
        return Inspected(
            ok=False,
            errors=[
                Trouble(
                    field=v.field, value="" if v.value is None else str(v.value), reason=v.reason, fix=v.fix
                )
                for v in error.violations
            ],
        )
    source = file / "config.json" if file.is_dir() else file
    told = chosen(json.loads(source.read_text(encoding="utf-8")))
    if ModelShape.from_config(told) != shape:
        raise AssertionError("the fields chosen from the config make another shape than the config")
    found = Inspected(ok=True, config=told)
    try:
        found.message()
    except ValueError as error:
        reason = f"its fields do not fit into a termination message ({error})"
        fix = f"write the shape into spec.model.shape (a message holds {MESSAGE_LIMIT} bytes)"
        return Inspected(ok=False, errors=[Trouble(field=str(source), reason=reason, fix=fix)])
    return found


def chosen(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config.json that decide a shape; the rest may be thousands of lines."""
    told = {name: config[name] for name in FIELDS if config.get(name) is not None}
    quantized = config.get("quantization_config")
    if isinstance(quantized, dict):
        told["quantization_config"] = {"quant_method": str(quantized.get("quant_method", ""))}
    return told


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Ends the process: 0 the shape is known, 1 it is not, 2 wrong usage."""
    told = _parser().parse_args(argv)
    deadline = Deadline(told.deadline_s)
    try:
        found = Waiting(partial(inspect, told.model, told.revision)).result(deadline)
    except TimeoutError:
        reason = f"its config.json was not there within {deadline.seconds:g} s"
        fix = "see whether the model's volume or the way to the hub hangs"
        found = _failed(told.model, reason, fix)
    except Exception as error:
        found = _failed(
            told.model, f"{type(error).__name__}: {error}", "see the container's log, and report it"
        )
    for each in found.errors:
        print(
            f"plait: {each.field} = {each.value}: {each.reason}. Fix: {each.fix}", file=sys.stderr, flush=True
        )
    leave(found.message(), told.message)
    # Not SystemExit: it would wait for a thread that hangs in the kernel.
    sys.stdout.flush()
    os._exit(0 if found.ok else 1)


def _failed(model: str, reason: str, fix: str) -> Inspected:
    return Inspected(ok=False, errors=[Trouble(field="--model", value=model, reason=reason, fix=fix)])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fix = "see `python3 -m plait.pod.inspect --help`"
        wrong = Trouble(field="usage", value=" ".join(sys.argv[1:]), reason=message, fix=fix)
        leave(Inspected(ok=False, errors=[wrong]).message(), TERMINATION_LOG)
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python3 -m plait.pod.inspect", allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--revision")
    parser.add_argument("--deadline-s", type=seconds, default=120.0)
    parser.add_argument("--message", type=Path, default=TERMINATION_LOG)
    return parser


if __name__ == "__main__":
    main()
