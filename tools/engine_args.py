"""Write the table of a stock engine's arguments that `plait.contract.validate` reads without sglang.

Usage: python tools/engine_args.py [--check]
Run it with the engine version that is to be described installed; `--check` only compares.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "runtime" / "plait" / "contract" / "validate"

# argparse `type=` callables of the engine -> the forms that plait.contract.validate.argv reads.
TYPES = {
    "None": "str",
    "str": "str",
    "int": "int",
    "float": "float",
    "human_readable_int": "human_int",
    "nullable_str": "nullable_str",
    "loads": "json",
    "json_list_type": "json_list",
    "parse_cuda_graph_config_arg": "cuda_graph_config",
}
STORING = {"_StoreAction", "DeprecatedAliasStoreAction", "LoRAPathAction"}


def option(action: argparse.Action) -> dict[str, Any]:
    """One command-line option as plain data: flags, dest, form, and what the form needs."""
    kind = type(action).__name__
    told: dict[str, Any] = {"flags": list(action.option_strings), "dest": action.dest}
    if kind in STORING:
        name = "None" if action.type is None else action.type.__name__  # type: ignore[union-attr]
        told |= {"form": "value", "type": TYPES[name], "nargs": action.nargs}
        if action.nargs == "?":
            told["const"] = action.const
    elif kind in ("_StoreTrueAction", "DeprecatedStoreTrueAction"):
        told["form"] = "true"
    elif kind == "BooleanOptionalAction":
        told["form"] = "bool"
    elif kind == "DeprecatedStoreConstAction":
        told |= {"form": "const", "const": action.const_value}  # type: ignore[attr-defined]
    elif kind == "DeprecatedAction":
        told["form"] = "ignored"
    else:
        raise SystemExit(f"{action.option_strings}: this tool does not know the action {kind}")
    if kind.startswith("Deprecated"):
        told["instead"] = getattr(action, "new_flag", None)
    return told


def table() -> dict[str, Any]:
    """Fields with their defaults (and which have none), and every command-line option."""
    from sglang.srt.server_args import ServerArgs
    from sglang.version import __version__

    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    defaults: dict[str, Any] = {}
    required = []
    for field in dataclasses.fields(ServerArgs):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
        else:
            required.append(field.name)
    return {
        "engine": "sglang",
        "version": __version__,
        "required": required,
        "defaults": defaults,
        "options": [option(action) for action in parser._actions],
    }


def main() -> None:
    found = table()
    target = FOLDER / f"engine_args_{found['version'].replace('.', '_')}.json"
    options = ",\n".join(f"    {json.dumps(entry)}" for entry in found.pop("options"))
    head = json.dumps(found, indent=2)
    text = f'{head[:-2]},\n  "options": [\n{options}\n  ]\n}}\n'
    json.loads(text)
    if "--check" not in sys.argv[1:]:
        target.write_text(text)
    elif not target.exists() or target.read_text() != text:
        sys.exit(f"{target.name} is not what the engine says: run tools/engine_args.py")


if __name__ == "__main__":
    main()
