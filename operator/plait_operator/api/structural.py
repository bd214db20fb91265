"""pydantic's JSON schema made structural: no references, one type per field, defaults that stand alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]
_KEPT = frozenset(
    (
        "type", "description", "default", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems",
        "maxItems", "pattern", "required", "items", "properties", "additionalProperties",
    )
)  # fmt: skip
"""Keywords of pydantic's schema that mean the same to apiextensions; the others have no place there."""


def structural(model: type[BaseModel]) -> Schema:
    """A model's schema in the form that apiextensions takes, with defaults."""
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


def without_defaults(schema: Schema) -> Schema:
    """A status says what was seen: nothing in it comes from a default."""
    told = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in told:
        told["properties"] = {name: without_defaults(field) for name, field in told["properties"].items()}
    if "items" in told:
        told["items"] = without_defaults(told["items"])
    return told
