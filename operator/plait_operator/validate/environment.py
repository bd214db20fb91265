"""Environment of the engine containers: what the operator sets, and what would break Plait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from plait.contract.setting_kinds import GatherPath, PeerAccess
from plait.contract.settings import PREFIX, Settings, SettingsError
from plait.contract.validate.environment import validate_environment
from plait.contract.violation import Violation, nearest
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.validate.schema import check
from plait_operator.validate.wording import variable

_TREE = "Plait is loaded through it"
_RANKS = "the device plugin gives each pod its GPUs"

OWNED: Final[Mapping[str, tuple[str, str]]] = {
    "PLAIT_LAYOUT": ("the operator sets it", "remove it; its place is spec.cache.layout"),
    "PLAIT_SPLIT": ("the operator sets it", "remove it; its place is spec.cache.split"),
    "PLAIT_PREFETCH": ("the operator sets it", "remove it; its place is spec.cache.prefetch"),
    "PLAIT_SCRATCH_TOKENS": ("the operator sets it", "remove it; its place is spec.cache.scratchTokens"),
    "PLAIT_PEER_ACCESS": ("the operator sets it", "remove it; its place is spec.cache.peerAccess"),
    "PLAIT_CPU": ("the operator sets it", "remove it; its place is spec.engine.device"),
    "PLAIT_STATE_DIR": ("the operator sets it", "remove it"),
    "PLAIT_TEST_OWNERS": ("it is for tests of Plait alone", "remove it"),
    "PLAIT_TEST_FAULT": ("it is for tests of Plait alone", "remove it"),
    "PYTHONPATH": (_TREE, "remove it"),
    "PYTHONHOME": (_TREE, "remove it"),
    "PYTHONSAFEPATH": (_TREE, "remove it"),
    "SGLANG_PLUGINS": ("it chooses which plugins the engine loads, and could leave Plait out", "remove it"),
    "HF_TOKEN": ("the operator sets it", "remove it; its place is spec.model.source.hub.secretRef"),
    "MC_FORCE_TCP": ("it decides the transfer backend", "remove it; its place is spec.transfer.backend"),
    "CUDA_VISIBLE_DEVICES": (_RANKS, "remove it"),
    "NVIDIA_VISIBLE_DEVICES": (_RANKS, "remove it"),
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": (
        "a health check that generates a token stops a context-parallel engine",
        "remove it",
    ),
}
"""Variable -> why it is refused, and what to do."""
OWNED_PREFIXES = ("LWS_",)
FREE: Final = tuple(row.name for row in Settings().describe() if row.name not in OWNED)
"""Settings that a manifest may write itself."""
_PLACES = ("engine", "prefill", "decode")
_WAY = "PLAIT_GATHER_PATH"
_WAYS_OF_PEERS = frozenset(way.value for way in GatherPath if way.needs_peers)


def environment_violations(spec: SharedKVDeploymentSpec) -> Iterator[Violation]:
    """Violations of the three lists of variables, each told where it was written."""
    for place in _PLACES:
        path = f"spec.{place}.env"
        yield from _list(getattr(spec, place).env, path=path)
    yield from _gather(spec)


def _gather(spec: SharedKVDeploymentSpec) -> Iterator[Violation]:
    """A way of gathering that reads mapped pools, where none are mapped: no prefill engine would start."""
    if PeerAccess(spec.cache.peer_access) is not PeerAccess.OFF:
        return
    for place in ("engine", "prefill"):
        for number, entry in enumerate(getattr(spec, place).env):
            way = entry.get("value")
            if entry.get("name") == _WAY and way in _WAYS_OF_PEERS:
                reason = "it reads pools that the ranks map, and spec.cache.peerAccess is off"
                yield Violation(f"spec.{place}.env[{number}].value", way, reason, "auto or collective")


def _list(env: Sequence[Mapping[str, Any]], *, path: str) -> Iterator[Violation]:
    seen: dict[str, int] = {}
    for number, entry in enumerate(env):
        where = f"{path}[{number}]"
        faults = list(check(dict(entry), "V1EnvVar", path=where))
        yield from faults
        name = entry.get("name")
        if not isinstance(name, str):
            continue
        if why := variable(name):
            yield Violation(f"{where}.name", name, why, "letters, digits and underscores")
        if name in seen:
            reason = f"{path}[{seen[name]}] sets it already"
            yield Violation(f"{where}.name", name, reason, "keep one of the two")
        seen.setdefault(name, number)
        if not faults:
            yield from _entry(name, entry, where)


def _entry(name: str, entry: Mapping[str, Any], where: str) -> Iterator[Violation]:
    if entry.get("value") is not None and entry.get("valueFrom") is not None:
        yield Violation(f"{where}.valueFrom", entry["valueFrom"], "value is given too", "keep one of the two")
    if name in OWNED:
        yield Violation(f"{where}.name", name, *OWNED[name])
    elif name.startswith(OWNED_PREFIXES):
        yield Violation(f"{where}.name", name, "the operator sets such variables", "remove it")
    elif entry.get("valueFrom") is not None:
        if name.startswith(PREFIX) or _watched(name):
            reason = "what it will hold cannot be checked here"
            yield Violation(f"{where}.valueFrom", entry["valueFrom"], reason, "write its value")
    else:
        yield from _value(name, str(entry.get("value") or ""), where)


def _value(name: str, text: str, where: str) -> Iterator[Violation]:
    if name.startswith(PREFIX):
        try:
            Settings.from_env({name: text})
        except SettingsError as error:
            if name in FREE:
                yield from (told._replace(field=f"{where}.value", value=text) for told in error.violations)
            else:
                close = nearest(name.removeprefix(PREFIX), (known.removeprefix(PREFIX) for known in FREE))
                fix = f"did you mean {PREFIX}{close}?" if close else f"remove it; free are {', '.join(FREE)}"
                yield Violation(f"{where}.name", name, "no setting of Plait has this name", fix)
    for told in validate_environment({name: text}):
        yield told._replace(field=f"{where}.value", fix="remove it")


def _watched(name: str) -> bool:
    """Whether some value of this variable of the engine's is refused."""
    return any(validate_environment({name: text}) for text in ("1", "0"))


def is_true(env: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether the last entry of that name in `env` says yes, as the engine reads it."""
    values = [entry.get("value") for entry in env if entry.get("name") == name]
    return bool(values) and str(values[-1]).lower() in ("true", "1", "yes", "y")
