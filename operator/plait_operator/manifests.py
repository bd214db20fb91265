"""The deployments in a YAML text of manifests, and what YAML itself would hide of how they were written."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import yaml

from plait.contract.violation import Violation
from plait_operator.api.base import API_VERSION
from plait_operator.observed import Manifest

KIND: Final = "SharedKVDeployment"
_OURS: Final = (KIND, "SharedKVRole")
_CLOSE: Final = 0.85
"""Above the likeness of Deployment and SharedKVDeployment, which nobody mistakes for each other."""
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


class Written(NamedTuple):
    """A deployment as JSON. `faults`: keys that stand twice, of which YAML keeps one, or that are no text."""

    body: Manifest
    faults: tuple[Violation, ...]


class Skipped(NamedTuple):
    """An object that is no deployment. `meant`: its kind is a deployment's, misspelt."""

    kind: str
    name: str
    meant: bool

    def __str__(self) -> str:
        name = f"{self.kind}/{self.name}" if self.name else self.kind
        return f"{name}: did you mean {KIND}?" if self.meant else name


class Manifests(NamedTuple):
    """All objects of a text, those of lists (`kind: List`) among them, in its order."""

    deployments: tuple[Written, ...]
    skipped: tuple[Skipped, ...]


def read_manifests(text: str) -> Manifests:
    """Raises yaml.YAMLError, or ValueError for a value that no YAML type holds, as the 40th of a month."""
    loader = yaml.SafeLoader(text)
    found: list[tuple[yaml.Node, tuple[Violation, ...]]] = []
    try:
        # All are looked at before the first is made: making one writes merged keys (<<) into its nodes.
        while loader.check_node():
            document = loader.get_node()
            if document is not None:
                found += [(node, tuple(_faults(node, "", set()))) for node in _objects(document)]
        made = [(loader.construct_document(node), faults) for node, faults in found]
    except RecursionError:
        raise yaml.YAMLError("it is nested too deep") from None
    finally:
        loader.dispose()
    deployments, skipped = [], []
    for body, faults in made:
        if isinstance(body, dict) and body.get("kind") == KIND:
            deployments.append(Written(body, faults))
        elif body is not None:
            skipped.append(_skipped(body))
    return Manifests(tuple(deployments), tuple(skipped))


def _objects(document: yaml.Node) -> Iterator[yaml.Node]:
    """The document, or its items where it is a list of objects."""
    told = {}
    if isinstance(document, yaml.MappingNode):
        told = {key.value: value for key, value in document.value if isinstance(key, yaml.ScalarNode)}
    kind, items = told.get("kind"), told.get("items")
    of_objects = isinstance(kind, yaml.ScalarNode) and kind.value in ("List", f"{KIND}List")
    if of_objects and isinstance(items, yaml.SequenceNode):
        yield from items.value
    else:
        yield document


def _faults(node: yaml.Node, path: str, seen: set[int]) -> Iterator[Violation]:
    """Faults of the keys below `node`. Those that are no text are made one, so that the rest can be read."""
    if id(node) in seen:
        return  # an alias: told where it was written, and perhaps inside of what it stands for
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _faults(value, f"{path}[{number}]", seen)
    if not isinstance(node, yaml.MappingNode):
        return
    written: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        where = f"{path}.{key.value}" if path else str(key.value)
        line = f"line {key.start_mark.line + 1}"
        if key.tag != _TEXT:
            key.tag = _TEXT
            yield Violation(where, None, f"{line}: key must be a text", "put it in quotes")
        if key.value in written:
            reason = f"{line}: is written twice, and only one can hold"
            yield Violation(where, None, reason, "keep one of the two")
        written.add(key.value)
        yield from _faults(value, where, seen)


def _skipped(body: Any) -> Skipped:
    if not isinstance(body, dict):
        return Skipped("no object", "", meant=False)
    kind, metadata = str(body.get("kind")), body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    alike = difflib.SequenceMatcher(None, kind.casefold(), KIND.casefold()).ratio() >= _CLOSE
    ours = str(body.get("apiVersion")).partition("/")[0] == API_VERSION.partition("/")[0]
    return Skipped(kind, str(name or ""), meant=kind not in _OURS and (alike or ours))
