"""Whether a child in the cluster still is what is wanted, so that nothing is written when nothing changed.

The comparison asks one question: would applying the manifest again change the object? Two things can: the
manifest is another one than was applied last (told by a digest in an annotation: also a field that is no
longer set shows so), or somebody changed a field that the manifest sets. What the API server filled in by
itself, and what others added beside our fields, is not compared, because applying would not change it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import orjson

from plait_operator.names import APPLIED
from plait_operator.observed import Manifest

_SERVER_OWNED: Final = frozenset({"status"})
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "secrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
    "resourceClaims": ("name",),
}
"""Lists whose items the API server merges by key; all other lists are replaced as a whole."""
_SETS: Final = frozenset({"finalizers"})
_WHOLE_MAPS: Final = frozenset(
    {
        "selector",
        "matchLabels",
        "nodeSelector",
        "podSelector",
        "namespaceSelector",
        "labelSelector",
        "scaleTargetRef",
    }
)
"""Maps that the API server replaces as a whole: a key too many in them is a change of ours undone."""
_MONITOR_OWN: Final = frozenset({"any", "matchNames"})
"""Keys of a ServiceMonitor's namespaceSelector, which is another thing under the same name and is merged."""
_MAPS: Final = frozenset(
    {"annotations", "labels", "nodeSelector", "matchLabels", "data", "binaryData", "limits", "requests"}
)
"""Maps that the API server leaves out when they are empty (an empty structure it keeps)."""
_ABSENT_IS_NOT_FALSE: Final = frozenset(
    {
        "automountServiceAccountToken",
        "allowPrivilegeEscalation",
        "readOnlyRootFilesystem",
        "runAsNonRoot",
        "immutable",
        "enableServiceLinks",
        "allocateLoadBalancerNodePorts",
    }
)
"""Optional booleans: absent is another value than false (a missing automount means a token is given)."""
_QUANTITIES: Final = frozenset({"limits", "requests", "sizeLimit", "divisor", "averageValue", "capacity"})
_BINARY: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_SUFFIXES: Final[Mapping[str, Decimal]] = {
    **{suffix: Decimal(1024) ** (power + 1) for power, suffix in enumerate(_BINARY)},
    **{suffix: Decimal(1000) ** (power - 3) for power, suffix in enumerate(_DECIMAL)},
}


def digest(manifest: Mapping[str, Any]) -> str:
    """16 hex digits of the manifest, whatever the order of its keys; its APPLIED annotation is left out."""
    metadata = dict(manifest.get("metadata") or {})
    told = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != APPLIED}
    metadata.pop("annotations", None)
    if told:
        metadata["annotations"] = told
    return hashlib.sha256(_text({**manifest, "metadata": metadata})).hexdigest()[:16]


def _text(manifest: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # A number of more than 64 bits: slower, but told apart all the same.
        return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def stamped(manifest: Manifest) -> Manifest:
    """A copy of the manifest that carries its own digest. What is applied is always a stamped one."""
    metadata = manifest["metadata"]
    annotations = {**(metadata.get("annotations") or {}), APPLIED: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def differs(wanted: Mapping[str, Any], live: Mapping[str, Any] | None, *, told: str = "") -> str:
    """Why `wanted` (stamped or not) must be applied over `live`; empty when that would change nothing.

    `told`: digest of `wanted`, where it is known already.
    """
    if live is None:
        return "missing"
    applied = ((live.get("metadata") or {}).get("annotations") or {}).get(APPLIED)
    if applied != (told or digest(wanted)):
        return "never applied by this operator" if applied is None else "the manifest is another one"
    for key, value in wanted.items():
        if key not in _SERVER_OWNED:
            why = _differs(value, live.get(key), (key,), absent=key not in live)
            if why:
                return why
    return ""


def quantity(value: object) -> Decimal | None:
    """A Kubernetes quantity ("500m", "2Gi", 8, "1e3") as a number; None if it is none."""
    if isinstance(value, bool):
        return None
    text = str(value)
    suffix = next((one for one in _BINARY if text.endswith(one)), "")
    if not suffix and text and text[-1] in _DECIMAL:
        suffix = text[-1]
    try:
        number = Decimal(text[: len(text) - len(suffix)])
    except InvalidOperation:
        return None
    return number * _SUFFIXES[suffix] if number.is_finite() else None


def _differs(wanted: Any, live: Any, path: tuple[str, ...], *, absent: bool) -> str:
    if absent:
        return "" if _dropped(wanted, path) else f"{_told(path)} is gone"
    if type(wanted) is type(live) and wanted == live:
        return ""  # Most of what there is.
    if isinstance(wanted, dict):
        return _map_differs(wanted, live, path)
    if isinstance(wanted, list):
        return _list_differs(wanted, live, path)
    if type(wanted) is type(live) or not (isinstance(wanted, bool) or isinstance(live, bool)):
        if wanted == live:
            return ""
        if path[0] == "spec" and not _QUANTITIES.isdisjoint(path):
            number = quantity(wanted)
            if number is not None and number == quantity(live):
                return ""
    return f"{_told(path)} was changed"


def _dropped(wanted: Any, path: tuple[str, ...]) -> bool:
    """Whether the API server leaves such a value out when it stores the object."""
    key = path[-1]
    if wanted is None or wanted == []:
        return True
    if wanted is False:
        return key not in _ABSENT_IS_NOT_FALSE
    if wanted == "":
        return len(path) < 2 or path[-2] not in _MAPS
    return wanted == {} and key in _MAPS


def _map_differs(wanted: Mapping[str, Any], live: Any, path: tuple[str, ...]) -> str:
    if not isinstance(live, dict):
        return f"{_told(path)} was changed"
    for key, value in wanted.items():
        why = _differs(value, live.get(key), (*path, key), absent=key not in live)
        if why:
            return why
    if not _WHOLE_MAPS.isdisjoint(path) and path[0] == "spec":
        extra = sorted(set(live) - set(wanted))
        extra = [key for key in extra if live[key] not in (None, "", [], {}) and key not in _MONITOR_OWN]
        if extra:
            return f"{_told((*path, extra[0]))} was added"
    return ""


def _list_differs(wanted: Sequence[Any], live: Any, path: tuple[str, ...]) -> str:
    if not isinstance(live, list):
        return f"{_told(path)} was changed"
    name = path[-1]
    if name in _SETS:
        return "" if set(wanted) <= set(live) else f"{_told(path)} was changed"
    keyed = _key_of(name, wanted, path)
    if keyed is not None:
        return _keyed_differs(wanted, live, path, keyed)
    if len(wanted) != len(live):
        return f"{_told(path)} was changed"
    for index, (ours, theirs) in enumerate(zip(wanted, live, strict=True)):
        why = _differs(ours, theirs, (*path[:-1], f"{name}[{index}]"), absent=False)
        if why:
            return why
    return ""


def _keyed_differs(
    wanted: Sequence[Any], live: Sequence[Any], path: tuple[str, ...], keyed: Callable[[Any], object]
) -> str:
    there = {keyed(item): item for item in live}
    for ours in wanted:
        key = keyed(ours)
        # The key stands in the path's text, so that a person finds the container or the variable.
        step = (*path[:-1], f"{path[-1]}[{key if isinstance(key, str) else '/'.join(map(str, _tuple(key)))}]")
        why = _differs(ours, there.get(key), step, absent=key not in there)
        if why:
            return why
    return ""


def _tuple(key: object) -> tuple[object, ...]:
    return key if isinstance(key, tuple) else (key,)


def _key_of(name: str, items: Sequence[Any], path: tuple[str, ...]) -> Callable[[Any], object] | None:
    """How items of the list `name` are told apart; None: the list is replaced as a whole."""
    fields = _KEYS.get(name)
    if name == "ports" and all(isinstance(item, dict) for item in items):
        if all("containerPort" in item for item in items):
            fields = ("containerPort", "protocol")
        elif path == ("spec", "ports"):  # Of a Service; those of a NetworkPolicy's rules have no keys.
            fields = ("port", "protocol")
    if fields is None or not all(isinstance(item, dict) for item in items):
        return None
    if fields == ("name",):
        return lambda item: str(item.get("name"))
    default = {"protocol": "TCP"}
    return lambda item: tuple(item.get(one, default.get(one)) for one in fields)


def _told(path: tuple[str, ...]) -> str:
    return ".".join(path)
