"""CustomResourceDefinitions from the models: structural schema, defaults, CEL rules, columns, subresources.

What the models say and a structural schema cannot is left to the validator: unknown fields (the API server
prunes them), the insides of free-form maps, and whatever needs more than one look.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from plait_operator.api.base import GROUP, VERSION
from plait_operator.api.cel import Rule
from plait_operator.api.kinds import KINDS, Column, Kind
from plait_operator.api.structural import Schema, structural, without_defaults


def crds() -> list[Schema]:
    """The CustomResourceDefinitions, one for each kind."""
    return [_crd(kind) for kind in KINDS]


def file_name(crd: Mapping[str, Any]) -> str:
    """Name of the file that a definition is kept in."""
    return f"{crd['spec']['names']['plural']}.yaml"


def text(crd: Mapping[str, Any]) -> str:
    """A definition as YAML, with its fields in their order."""
    return yaml.safe_dump(dict(crd), sort_keys=False, width=110, allow_unicode=True)


def main(folder: Path | None = None) -> None:
    """Print the definitions as one YAML stream, or write each to its file in `folder`."""
    if folder is None:
        print("---\n".join(text(crd) for crd in crds()), end="")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for crd in crds():
        (folder / file_name(crd)).write_text(text(crd), encoding="utf-8")


def _crd(kind: Kind) -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "plait", "app.kubernetes.io/component": "crd"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [kind.short],
                "categories": ["plait"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [_column(column) for column in kind.columns],
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": kind.scale.spec,
                            "statusReplicasPath": kind.scale.status,
                            "labelSelectorPath": kind.scale.selector,
                        },
                    },
                    "schema": {"openAPIV3Schema": schema_of(kind)},
                }
            ],
        },
    }


def schema_of(kind: Kind) -> Schema:
    """The structural schema of a kind, with its rules."""
    whole: Schema = {
        "type": "object",
        "description": kind.about,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # Names of children, hosts and label values are made of it: 63 characters is what those hold.
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 63}}},
            "spec": structural(kind.spec),
            "status": without_defaults(structural(kind.status)),
        },
    }
    for path, key in kind.keyed.items():
        _key(_at(whole, path), key)
    for path in kind.sets:
        _at(whole, path)["x-kubernetes-list-type"] = "set"
    for rule in kind.rules:
        _at(whole, rule.at).setdefault("x-kubernetes-validations", []).append(_rule(rule))
    return whole


def _key(schema: Schema, key: str) -> None:
    """Make a list a map by `key`: server-side apply merges it by entry, and no key may come twice."""
    schema["x-kubernetes-list-type"] = "map"
    schema["x-kubernetes-list-map-keys"] = [key]
    entry = schema["items"]
    entry.setdefault("properties", {}).setdefault(key, {"type": "string"})
    entry["required"] = sorted({*entry.get("required", []), key})


def _rule(rule: Rule) -> Schema:
    told = {"rule": rule.rule, "message": rule.message}
    return {**told, "fieldPath": rule.field} if rule.field else told


def _at(schema: Schema, path: str) -> Schema:
    for step in path.split(".") if path else ():
        name = step.removesuffix("[]")
        if name not in schema.get("properties", {}):
            raise KeyError(f"a rule names {path}, and there is no {name}")
        schema = schema["properties"][name]
        if step.endswith("[]"):
            schema = schema["items"]
    return schema


def _column(column: Column) -> Schema:
    return {
        "name": column.name,
        "type": column.kind,
        "description": column.description,
        "jsonPath": column.path,
        "priority": 1 if column.wide else 0,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
