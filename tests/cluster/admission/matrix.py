"""Manifests to refuse and to accept: one table for the validator alone and for a real API server."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_FOLDER = Path(__file__).parent
_BASES: dict[str, dict[str, Any]] = yaml.safe_load((_FOLDER / "bases.yaml").read_text())


class Bad(NamedTuple):
    """A manifest to refuse. `fields`: every path that must be told, and no other.

    `cel`: the CRD itself refuses it too, with the webhook down. `strict`: the API server refuses the unknown
    field before anything else is asked. `cpu`: which manifest is changed.
    """

    name: str
    change: dict[str, Any]
    fields: list[str]
    cel: bool = False
    strict: bool = False
    cpu: bool = False


class Good(NamedTuple):
    """A manifest to accept. `warns`: fields that warnings name, at least."""

    name: str
    change: dict[str, Any]
    warns: list[str] = []  # noqa: RUF012 - of a NamedTuple, and nobody appends
    cpu: bool = False


def manifest(change: dict[str, Any], *, cpu: bool = False) -> dict[str, Any]:
    """The sound manifest with `change` in it; paths have slashes, since keys may hold dots."""
    made = copy.deepcopy(_BASES["cpu" if cpu else "gpu"])
    for path, value in change.items():
        *steps, last = path.split("/")
        node = made
        for step in steps:
            node = node.setdefault(step, {})
        if value is None:
            node.pop(last, None)
        elif isinstance(value, dict) and value.get("TINY"):
            shape = {**_BASES["cpu"]["spec"]["model"]["shape"], **value}
            node[last] = {key: told for key, told in shape.items() if key != "TINY"}
        else:
            node[last] = copy.deepcopy(value)
    return made


BAD = tuple(Bad(**row) for row in yaml.safe_load((_FOLDER / "bad.yaml").read_text()))
GOOD = tuple(Good(**{"change": {}, **row}) for row in yaml.safe_load((_FOLDER / "good.yaml").read_text()))
