"""Defaults that the CRD's schema cannot say, since they depend on another field. As JSON patches (RFC 6902).

Few, and each safe to apply twice: a field that is there already is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait_operator.validate import family_of_repository

Patch = list[dict[str, Any]]


def defaults(body: Mapping[str, Any]) -> Patch:
    """Operations that fill in `body`, a SharedKVDeployment's JSON of any form; [] where it has all."""
    return _family(body)


def _family(body: Mapping[str, Any]) -> Patch:
    """The family of a published model, by its repository: no Job then has to read config.json first."""
    model = _mapping(_mapping(body.get("spec")).get("model"))
    if not model or model.get("family") is not None or model.get("shape") is not None:
        return []
    repository = _mapping(_mapping(model.get("source")).get("hub")).get("repo")
    family = family_of_repository(repository, revision=model.get("revision"))
    return [{"op": "add", "path": "/spec/model/family", "value": family}] if family else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
