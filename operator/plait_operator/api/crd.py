"""CustomResourceDefinitions from the models: structural schema, defaults, CEL rules, columns, subresources.

What the models say and a structural schema cannot is left to the validator: unknown fields (the API server
prunes them), the insides of free-form maps, and whatever needs more than one look.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from plait_operator.api.base import GROUP, VERSION
from plait_operator.api.cel import DEPLOYMENT_RULES, ROLE_RULES, Rule
from plait_operator.api.spec import SharedKVDeploymentSpec, SharedKVRoleSpec
from plait_operator.api.status import SharedKVDeploymentStatus, SharedKVRoleStatus

Schema = dict[str, Any]
_KEPT = frozenset(
    (
        "type", "description", "default", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems",
        "maxItems", "pattern", "required", "items", "properties", "additionalProperties",
    )
)  # fmt: skip
"""Keywords of pydantic's schema that mean the same to apiextensions; the others have no place there."""


class Column(NamedTuple):
    """One column of `kubectl get`. `wide`: only with -o wide."""

    name: str
    kind: str
    path: str
    description: str
    wide: bool = False


class Scale(NamedTuple):
    """Paths of the scale subresource."""

    spec: str
    status: str
    selector: str


class Kind(NamedTuple):
    """One custom resource, and what its CRD is made of."""

    kind: str
    plural: str
    short: str
    about: str
    spec: type[BaseModel]
    status: type[BaseModel]
    scale: Scale
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...]
    keyed: Mapping[str, str]
    """Lists whose entries have a key, by path."""
    sets: tuple[str, ...] = ()
    """Lists in which nothing comes twice."""


def _condition(of: str, what: str) -> str:
    return f'.status.conditions[?(@.type=="{of}")].{what}'


_AGE = Column("AGE", "date", ".metadata.creationTimestamp", "Since it was made.")

KINDS: tuple[Kind, ...] = (
    Kind(
        kind="SharedKVDeployment",
        plural="sharedkvdeployments",
        short="skv",
        about="A shared-KV serving stack: prefill groups with one cache each, decode engines and routers.",
        spec=SharedKVDeploymentSpec,
        status=SharedKVDeploymentStatus,
        # A version has one scale subresource: decode's. Prefill scales by its SharedKVRole.
        scale=Scale(".spec.decode.replicas", ".status.decode.replicas", ".status.decodeSelector"),
        columns=(
            Column("MODEL", "string", ".spec.model.name", "Name in requests."),
            Column("PREFILL", "string", ".status.prefill.pods", "Prefill groups: ready of wanted."),
            Column("DECODE", "string", ".status.decode.pods", "Decode pods: ready of wanted."),
            Column("ROUTER", "string", ".status.router.pods", "Router pods: ready of wanted."),
            Column("CONTEXT", "integer", ".status.capacity.maxContext", "Longest request in tokens."),
            Column("TOKENS", "integer", ".status.capacity.tokensShared", "KV tokens of one prefill group."),
            Column("AVAILABLE", "string", _condition("Available", "status"), "Whether requests are served."),
            Column("REASON", "string", _condition("Available", "reason"), "Why, or why not."),
            _AGE,
            Column("PROGRESSING", "string", _condition("Progressing", "reason"), "What goes on.", wide=True),
            Column("DEGRADED", "string", _condition("Degraded", "reason"), "What is wrong.", wide=True),
            Column("WIRE", "string", ".status.contract.wire", "Hash that pairs are made by.", wide=True),
            Column("ENDPOINT", "string", ".status.endpoint", "Address for clients.", wide=True),
        ),
        rules=DEPLOYMENT_RULES,
        keyed={
            "spec.engine.env": "name",
            "spec.prefill.env": "name",
            "spec.decode.env": "name",
            "spec.pods.imagePullSecrets": "name",
            "status.conditions": "type",
        },
        sets=("spec.transfer.rdma.devices",),
    ),
    Kind(
        kind="SharedKVRole",
        plural="sharedkvroles",
        short="skvr",
        about="The scale of one role of a SharedKVDeployment, which an autoscaler may own. "
        "The operator makes it; nobody else should.",
        spec=SharedKVRoleSpec,
        status=SharedKVRoleStatus,
        scale=Scale(".spec.replicas", ".status.replicas", ".status.selector"),
        columns=(
            Column("WANTED", "integer", ".spec.replicas", "Replicas asked for."),
            Column("REPLICAS", "integer", ".status.replicas", "Pods that are there."),
            Column("READY", "integer", ".status.ready", "Pods that are ready."),
            _AGE,
        ),
        rules=ROLE_RULES,
        keyed={},
    ),
)


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
            "spec": _structural(kind.spec),
            "status": _without_defaults(_structural(kind.status)),
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


def _structural(model: type[BaseModel]) -> Schema:
    told = model.model_json_schema(by_alias=True)
    return _plain(told, told.get("$defs", {}))


def _plain(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """`schema` without references and without what apiextensions refuses."""
    schema, optional = _resolved(schema, defs)
    told = {key: copy.deepcopy(value) for key, value in schema.items() if key in _KEPT}
    if "description" in told:
        told["description"] = " ".join(told["description"].split())
    if told.get("default", ...) is None:
        del told["default"]
    if "properties" in schema:
        told.pop("additionalProperties", None)
        fields = {name: _plain(field, defs) for name, field in schema["properties"].items()}
        for name in told.get("required", []):
            fields[name].pop("default", None)
        told["properties"] = fields
        # A section in which nothing is required stands with its defaults even where nobody wrote it (written
        # out, for a default must fit the rules as it stands); what is optional as a whole does not come into
        # being that way.
        if not optional and not told.get("required"):
            defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
            told.update({"default": defaults} if defaults else {})
    elif told.get("type") == "object":
        values = told.pop("additionalProperties", True)
        if isinstance(values, dict) and values:
            told["additionalProperties"] = _plain(values, defs)
        else:
            told["x-kubernetes-preserve-unknown-fields"] = True
    if "items" in schema:
        told["items"] = _plain(schema["items"], defs)
        told["items"].pop("default", None)
    return told


def _resolved(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> tuple[Schema, bool]:
    """`schema` with the definition that it refers to; and whether it may be left out (null in the model)."""
    told = dict(schema)
    forms = told.pop("anyOf", None)
    if forms is not None:
        some = [form for form in forms if form.get("type") != "null"]
        if len(some) != 1:
            raise ValueError(f"a structural schema has one type per field, here are {some}")
        told = {**some[0], **told}
    if "$ref" in told:
        name = told.pop("$ref").rsplit("/", 1)[-1]
        told = {**defs[name], **told}
    return told, forms is not None


def _without_defaults(schema: Schema) -> Schema:
    """A status says what was seen: nothing in it comes from a default."""
    told = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in told:
        told["properties"] = {name: _without_defaults(field) for name, field in told["properties"].items()}
    if "items" in told:
        told["items"] = _without_defaults(told["items"])
    return told


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
