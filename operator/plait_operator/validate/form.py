"""The form of a manifest: every misspelt, missing or mistyped field at once, and a spec of what is sound.

A spec with faults of form is still checked for the rest: its bad fields are taken out, its missing ones are
filled in, and what the other rules say about those places is left out (`Form.hides`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from plait.contract.violation import Violation, nearest
from plait_operator.api.base import Section

SectionT = TypeVar("SectionT", bound=Section)

_FILLER = "to-be-written"
_FIXES = {
    "int_type": "a whole number, without quotes",
    "int_from_float": "a whole number",
    "float_type": "a number, without quotes",
    "bool_type": "true or false, without quotes",
    "string_type": "a text (in quotes where it looks like a number or true or false)",
    "list_type": "a list, each entry with a dash before it",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of fields to values",
    "string_too_short": "write something",
}
_KINDS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "string_too_short": "is empty",
}


class Form(NamedTuple):
    """`spec`: what is sound of the manifest's spec, filled up. `faults`: what is wrong with the rest."""

    spec: Any
    faults: tuple[Violation, ...]

    def hides(self, field: str) -> bool:
        """Whether a rule's word about `field` would be about a place that has a fault of form already."""
        return any(
            field == fault.field or field.startswith((f"{fault.field}.", f"{fault.field}["))
            for fault in self.faults
        )


def read_form(told: object, model: type[SectionT], *, path: str = "spec") -> Form:
    """Read `told` (a spec as JSON) as `model`."""
    if not isinstance(told, Mapping):
        reason = "is missing" if told is None else "must be a mapping"
        fault = Violation(path, told, reason, f"a mapping with {', '.join(_names(model))}")
        return Form(model.model_validate(_filled(model)), (fault,))
    data: dict[str, Any] = copy.deepcopy(dict(told))
    faults = {fault.field: fault for fault in _odd_keys(data, path)}
    while True:
        try:
            return Form(model.model_validate(data, by_alias=True, by_name=False), tuple(faults.values()))
        except ValidationError as error:
            details = error.errors(include_url=False)
        for detail in details:
            where = _path(path, detail["loc"])
            if not _hidden(where, faults):
                faults[where] = _violation(where, detail, model)
        for location, kind in sorted({(detail["loc"], detail["type"]) for detail in details}, key=str):
            _repair(data, location, kind, model)


def _odd_keys(node: Any, path: str) -> Iterator[Violation]:
    """Take keys that are no texts out of `node`, which YAML has (`on: 3`, `1: 2`) and JSON has not."""
    if isinstance(node, dict):
        for key in [key for key in node if not isinstance(key, str)]:
            where = f"{path}.{json.dumps(key) if key is None or isinstance(key, bool) else key}"
            yield Violation(where, node.pop(key), "key must be a text", "put it in quotes")
        for key, value in node.items():
            yield from _odd_keys(value, f"{path}.{key}")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _odd_keys(value, f"{path}[{number}]")


def _hidden(where: str, faults: Mapping[str, Violation]) -> bool:
    return any(where == other or where.startswith((f"{other}.", f"{other}[")) for other in faults)


def _violation(where: str, fault: ErrorDetails, model: type[BaseModel]) -> Violation:
    kind, location = fault["type"], fault["loc"]
    value = None if kind == "missing" else fault["input"]
    if kind == "extra_forbidden":
        section = _section(model, location[:-1])
        known = [] if section is None else _names(section)
        close = nearest(str(location[-1]), known)
        fix = f"did you mean {close}?" if close else f"one of {', '.join(known)}"
        return Violation(where, value, "no such field", fix)
    if kind == "missing":
        about = _about(model, location)
        fix = f"write it: {about}" if about else "write it"
        return Violation(where, None, "is missing", f"{fix}{_needed(model, location)}")
    context = fault.get("ctx") or {}
    if kind == "greater_than_equal":
        return Violation(where, value, f"must be at least {context['ge']}", f"{context['ge']} or more")
    if kind == "less_than_equal":
        return Violation(where, value, f"must be at most {context['le']}", f"{context['le']} or less")
    if kind == "string_too_long":
        most = context["max_length"]
        return Violation(where, value, f"is longer than {most} characters", f"at most {most} characters")
    if kind == "literal_error":
        expected = str(context["expected"]).replace("'", "")
        close = nearest(value, expected.replace(" or ", ", ").split(", ")) if isinstance(value, str) else None
        hint = f"did you mean {close}? " if close else ""
        return Violation(where, value, "no such choice", f"{hint}one of {expected}")
    if kind in _KINDS:
        needed = _needed(model, location) if kind == "model_type" else ""
        return Violation(where, value, _KINDS[kind], f"{_FIXES[kind]}{needed}")
    text = str(fault["msg"])
    return Violation(where, value, text[:1].lower() + text[1:], "correct the value")


def _repair(data: dict[str, Any], location: Sequence[int | str], kind: str, model: type[BaseModel]) -> None:
    """Take the field at `location` out of `data`, or fill it in where it is needed."""
    node: Any = data
    for depth, step in enumerate(location):
        inside = isinstance(node, dict) and isinstance(step, str)
        if inside and depth < len(location) - 1 and isinstance(node.get(step), dict):
            node = node[step]
            continue
        if not inside:
            raise AssertionError(f"a fault at a place that is not there: {location}")
        # A list is taken out as a whole: without one of its entries the others would have other numbers.
        needed = _field(model, location[: depth + 1])
        if kind == "extra_forbidden" and depth == len(location) - 1:
            node.pop(step, None)
        elif needed is not None and needed.is_required():
            node[step] = _filler(needed.annotation)
        else:
            node.pop(step, None)
        return


def _filler(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _filled(annotation)
    return _FILLER if annotation is str else 1


def _filled(model: type[BaseModel]) -> dict[str, Any]:
    """The least that `model` takes."""
    return {
        field.alias or name: _filler(field.annotation)
        for name, field in model.model_fields.items()
        if field.is_required()
    }


def _section(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """The section at `location`, or None where something else is there."""
    inner: type[BaseModel] | None = model
    for step in location:
        if isinstance(step, int):
            continue
        if inner is None:
            return None
        field = next(f for n, f in inner.model_fields.items() if step in (n, f.alias))
        inner = _inner(field.annotation)
    return inner


def _field(model: type[BaseModel], location: Sequence[int | str]) -> Any:
    """The field at `location`, or None where there is no such field: an entry of a map of texts is none."""
    section = _section(model, location[:-1])
    if section is None:
        return None
    return next((f for n, f in section.model_fields.items() if location[-1] == (f.alias or n)), None)


def _needed(model: type[BaseModel], location: Sequence[int | str]) -> str:
    """`, with A and B`: the fields that the section at `location` cannot do without."""
    section = _section(model, location)
    needed = _filled(section) if section is not None else ()
    return f", with {' and '.join(needed)}" if needed else ""


def _about(model: type[BaseModel], location: Sequence[int | str]) -> str:
    field = _field(model, location)
    if field is None:
        return ""
    inner = field.annotation
    told = field.description or (isinstance(inner, type) and inner.__doc__) or ""
    return str(told).strip().rstrip(".")


def _inner(annotation: Any) -> type[BaseModel] | None:
    """The section in `X`, `X | None` or `list[X]`, None where `X` is none."""
    if get_origin(annotation) in (Union, UnionType, list):
        for part in get_args(annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                return part
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _path(path: str, location: Sequence[int | str]) -> str:
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path
