"""A user's podTemplate merged into ours, by the rules of Kubernetes' strategic merge for pods.

Total and pure: what has a form that no pod can have is passed on as it is, and the API server tells it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from plait_operator.observed import Manifest

_KEYS: Final = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "hostAliases": ("ip",),
    "readinessGates": ("conditionType",),
}
"""Lists whose items are told apart by these fields."""
_DEFAULTS: Final = {"protocol": "TCP"}
_WHOLE: Final = frozenset({"volumes", "env", "volumeMounts"})
"""Lists whose items are replaced, not merged: two sources of one volume or variable contradict each other."""
_APPENDED: Final = frozenset({"tolerations", "topologySpreadConstraints", "envFrom"})
"""Lists without keys that are added to; the same item is not added twice."""
_REPLACED: Final = frozenset({"nodeSelector"})
"""Maps that are replaced: who says where pods go says all of it."""


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> Manifest:
    """`base` with `patch` over it; neither is changed. A null in `patch` takes the field away.

    The answer shares what it can with `base`, and nothing with `patch`.
    """
    told: Manifest = dict(base)
    for key, value in patch.items():
        if value is None:
            told.pop(key, None)
        else:
            told[key] = _field(key, told.get(key), value)
    return told


def merged_env(*layers: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """Environments of a container, the later over the earlier: a variable said again stands last.

    A name stands once in the answer: with two of a name the API server warns, and keeps the last.
    """
    told: dict[object, Manifest] = {}
    for number, variable in enumerate(variable for layer in layers for variable in layer):
        # One without a name is like no other: the API server says so.
        name = variable["name"] if isinstance(variable.get("name"), str) else number
        told.pop(name, None)
        told[name] = copy.deepcopy(dict(variable))
    return list(told.values())


def _field(key: str, old: object, new: object) -> object:
    if isinstance(old, dict) and isinstance(new, dict) and key not in _REPLACED:
        return merged(old, new)
    if isinstance(old, list) and isinstance(new, list):
        if key == "env":
            sound = all(isinstance(variable, dict) for variable in (*old, *new))
            return merged_env(old, new) if sound else [*old, *copy.deepcopy(new)]
        if key in _KEYS:
            return _by_key(key, old, new)
        if key in _APPENDED:
            return [*old, *(copy.deepcopy(item) for item in new if item not in old)]
    return copy.deepcopy(new)


def _by_key(key: str, old: list[Any], new: list[Any]) -> list[Any]:
    told = list(old)
    places = {_identity(key, item): place for place, item in enumerate(old)}
    for item in new:
        place = places.get(_identity(key, item))
        if place is None or not isinstance(item, dict):
            told.append(copy.deepcopy(item))
        elif item.get("$patch") == "delete":
            told[place] = None
        elif key in _WHOLE:
            told[place] = copy.deepcopy(item)
        else:
            told[place] = merged(told[place], item)
    return [item for item in told if item is not None]


def _identity(key: str, item: object) -> tuple[object, ...]:
    """What tells `item` from others of its list; a thing without it is like nothing else."""
    if not isinstance(item, dict):
        return (id(item),)
    found = tuple(str(item.get(name, _DEFAULTS.get(name, ""))) for name in _KEYS[key])
    return found if found[0] else (id(item),)
