"""Defaults that the CRD's schema cannot say, since they depend on another field. As JSON patches (RFC 6902).

Few, and each safe to apply twice: what a user wrote is never touched, and what was filled in here follows the
field it came from, or it would describe the model of before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait_operator.validate import family_of_repository

Patch = list[dict[str, Any]]
_FAMILY = "/spec/model/family"


def defaults(body: Mapping[str, Any], *, old: Mapping[str, Any] | None = None) -> Patch:
    """Operations that fill in `body`, a SharedKVDeployment's JSON of any form; [] where it has all.

    `old`: the object before an update.
    """
    return _family(_model(body), _model(old))


def _family(model: Mapping[str, Any], old: Mapping[str, Any]) -> Patch:
    """The family of a published model, by its repository: no Job then has to read config.json first.

    A client that applies only its own fields sends back the family filled in for the repository of before.
    """
    if not model or model.get("shape") is not None:
        return []
    given, wanted, before = model.get("family"), _of_repository(model), _of_repository(old)
    if given is None:
        return [{"op": "add", "path": _FAMILY, "value": wanted}] if wanted else []
    if given != wanted and given == before and old.get("family") == before:
        return [
            {"op": "replace", "path": _FAMILY, "value": wanted}
            if wanted
            else {"op": "remove", "path": _FAMILY}
        ]
    return []


def _of_repository(model: Mapping[str, Any]) -> str | None:
    repository = _mapping(_mapping(model.get("source")).get("hub")).get("repo")
    return family_of_repository(repository, revision=model.get("revision")) or None


def _model(body: object) -> Mapping[str, Any]:
    return _mapping(_mapping(_mapping(body).get("spec")).get("model"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
