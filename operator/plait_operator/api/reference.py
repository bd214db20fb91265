"""The API's reference page, docs/crd.md, made from the models, the rules and the reasons."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from plait_operator.api.base import API_VERSION
from plait_operator.api.cel import Rule
from plait_operator.api.crd import schema_of
from plait_operator.api.kinds import KINDS, Kind
from plait_operator.api.reasons import MEANING, Reason

_INTRO = f"""\
# Custom resources of {API_VERSION}

This page is made from the operator's models by `python -m plait_operator.api.reference > docs/crd.md`.

A field that is left out takes its default, which the API server writes down. Beyond the rules here,
admission checks the whole contract as `plait check` does and tells all violations at once. A field that is
not listed is refused by kubectl and dropped by other clients' requests.
"""


def markdown() -> str:
    """The text of docs/crd.md."""
    return "\n".join([_INTRO, *(line for kind in KINDS for line in _kind(kind))]).rstrip("\n") + "\n"


def _kind(kind: Kind) -> Iterator[str]:
    schema = schema_of(kind)["properties"]
    among = {f"{rule.at}{rule.field}": rule.values for rule in kind.rules if rule.values}
    yield f"## {kind.kind} (`{kind.short}`)\n\n{kind.about}\n"
    yield from _section(["spec"], schema["spec"], among)
    if kind.rules:
        yield f"### Rules of {kind.kind}\n"
        yield "The API server checks these by itself, also while the admission webhook is down.\n"
        yield from _table(("field", "rule"), (_rule(rule) for rule in kind.rules))
    yield from _section(["status"], schema["status"], among)
    if kind.kind == "SharedKVDeployment":
        yield from _conditions()
    yield f"### Columns of `kubectl get {kind.short}`\n"
    columns = (
        (column.name + (" (-o wide)" if column.wide else ""), f"`{column.path}`", column.description)
        for column in kind.columns
    )
    yield from _table(("column", "from", "what"), columns)
    yield f"### Scale of {kind.kind}\n"
    yield f"`kubectl scale {kind.short} NAME --replicas N` sets `{kind.scale.spec}`; "
    yield f"an autoscaler reads `{kind.scale.status}` and `{kind.scale.selector}`.\n"


_Among = Mapping[str, Sequence[str | int]]
"""Path of a field -> the values that a rule lets it have."""


def _section(paths: list[str], schema: dict[str, Any], among: _Among) -> Iterator[str]:
    """A section with a table of its fields, then the sections inside it. `paths`: all that look so."""
    yield f"### {', '.join(f'`{path}`' for path in paths)}\n"
    if about := schema.get("description"):
        yield f"{about}\n"
    required = schema.get("required", [])
    rows = [
        (
            f"`{name}`",
            _type(field, among.get(f"{paths[0]}.{name}", ())),
            _default(name, field, required),
            _escaped(field.get("description", "")),
        )
        for name, field in schema["properties"].items()
    ]
    yield from _table(("field", "type", "default", "what"), rows)
    for names, inner in _alike(schema):
        yield from _section([f"{path}.{name}" for path in paths for name in names], inner, among)


def _alike(schema: dict[str, Any]) -> list[tuple[list[str], dict[str, Any]]]:
    """The sections inside a section with their names; those that are alike in all but their names, once."""
    found: list[tuple[list[str], dict[str, Any]]] = []
    for name, field in schema["properties"].items():
        inner = field.get("items", field)
        if "properties" not in inner or "x-kubernetes-preserve-unknown-fields" in inner:
            continue
        named = name + ("[]" if "items" in field else "")
        same = next((names for names, other in found if other == inner), None)
        if same is None:
            found.append(([named], inner))
        else:
            same.append(named)
    return found


def _type(field: dict[str, Any], among: Sequence[str | int] = ()) -> str:
    """`among`: the values that a rule lets the field have, if one does."""
    kind: str = field["type"]
    if kind == "array":
        return f"list of {_type(field['items'])}s"
    if values := field.get("enum", among):
        return " \\| ".join(f"`{value}`" for value in values)
    if "additionalProperties" in field:
        return f"map of {field['additionalProperties']['type']}s"
    if "properties" in field and "x-kubernetes-preserve-unknown-fields" not in field:
        return "section"
    limits = [f"{word} {field[key]}" for key, word in _LIMITS if key in field]
    return f"{kind}, {', '.join(limits)}" if limits else kind


_LIMITS = (("minimum", "at least"), ("maximum", "at most"))


def _default(name: str, field: dict[str, Any], required: list[str]) -> str:
    if name in required:
        return "**required**"
    if "default" not in field or isinstance(field["default"], dict):
        return ""
    value = field["default"]
    return f"`{value if isinstance(value, str) and value else json.dumps(value)}`"


def _rule(rule: Rule) -> tuple[str, str]:
    path = f"{rule.at}{rule.field}" or "metadata.name"
    return f"`{path}`", _escaped(rule.message.removeprefix("metadata.name: "))


def _conditions() -> Iterator[str]:
    yield "### Conditions\n"
    yield from _table(("condition", "when True"), ((kind.value, text) for kind, text in MEANING.items()))
    yield "### Reasons\n"
    yield "Reasons marked * do not end by themselves: they set `Degraded`.\n"
    rows = ((reason.value + (" *" if reason.lasting else ""), reason.about) for reason in Reason)
    yield from _table(("reason", "what it means"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    print(markdown(), end="")
