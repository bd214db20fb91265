"""Kubernetes' own types in a spec (pod templates, env, resources, metrics): unknown fields, wrong types.

The API server keeps these parts as they come, and would refuse them only in the children.
`kubernetes_types.json` is made by `tools/kubernetes_types.py`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import NamedTuple

from plait.contract.violation import Violation, nearest
from plait_operator.validate.wording import quantity


class _Plain(NamedTuple):
    """A plain kind: the Python types it may have, in words, and how to write it."""

    types: tuple[type, ...]
    words: str
    fix: str


_PLAIN = {
    "str": _Plain((str,), "a text", "put it in quotes"),
    "int": _Plain((int,), "a whole number", "a whole number, without quotes"),
    "float": _Plain((int, float), "a number", "a number, without quotes"),
    "bool": _Plain((bool,), "true or false", "true or false, without quotes"),
    "int|str": _Plain((int, str), "a number or a name", "a number, or a name"),
}


@functools.cache
def _types() -> Mapping[str, Mapping[str, str]]:
    text = resources.files(__package__).joinpath("kubernetes_types.json").read_text(encoding="utf-8")
    told: Mapping[str, Mapping[str, str]] = json.loads(text)
    return told


def check(value: object, kind: str, *, path: str, partial: bool = False) -> Iterator[Violation]:
    """Violations of `value` as a `kind` of the table, named below `path`.

    `partial`: required fields of the outermost type may be missing, since it is merged into another.
    """
    kind = kind.removesuffix("!")
    if value is None or kind == "any":
        return
    if kind.startswith("list["):
        if not isinstance(value, list):
            yield Violation(path, value, "must be a list", "a list, each entry with a dash before it")
            return
        for number, item in enumerate(value):
            yield from _item(item, kind[5:-1], path=f"{path}[{number}]")
    elif kind.startswith("map["):
        if not isinstance(value, dict):
            yield Violation(path, value, "must be a mapping", "a mapping of keys to values")
            return
        for key, item in value.items():
            yield from _item(item, kind[4:-1], path=f"{path}.{key}")
    elif kind == "quantity":
        if quantity(value) is None:
            reason = "not a quantity that is 0 or more"
            yield Violation(path, value, reason, "a number with or without a unit, as in 500m, 2 or 64Gi")
    elif kind in _PLAIN:
        plain = _PLAIN[kind]
        if not isinstance(value, plain.types) or (isinstance(value, bool) and bool not in plain.types):
            yield Violation(path, value, f"must be {plain.words}", plain.fix)
    else:
        yield from _fields(value, kind, path=path, partial=partial)


def _item(value: object, kind: str, *, path: str) -> Iterator[Violation]:
    if value is None:
        yield Violation(path, None, "is empty", "write a value, or leave the entry out")
    else:
        yield from check(value, kind, path=path)


def _fields(value: object, kind: str, *, path: str, partial: bool) -> Iterator[Violation]:
    known = _types()[kind]
    if not isinstance(value, dict):
        yield Violation(path, value, "must be a mapping", f"a mapping with fields of {', '.join(known)}")
        return
    for name, item in value.items():
        if name in known:
            yield from check(item, known[name], path=f"{path}.{name}")
            continue
        close = nearest(str(name), known)
        fix = f"did you mean {close}?" if close else f"one of {', '.join(known)}"
        yield Violation(f"{path}.{name}", item, "no such field", fix)
    for name, inner in known.items():
        if inner.endswith("!") and value.get(name) is None and not partial:
            yield Violation(f"{path}.{name}", None, "is missing", f"write {name}")
