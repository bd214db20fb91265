"""Which pod is a worker, and where. Pure: a pod as the API server tells it in, a target or a reason out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from plait.router.config import ConfigError
from plait.router.discovery.address import join
from plait.router.discovery.kubernetes.selector import ROLE_LABEL, Selector
from plait.router.discovery.target import Target
from plait.router.pairing import Side

ADMITTED_GATE = "plait.dev/router-admitted"
"""Readiness gate that the operator sets once the router has taken the pod in."""

GROUP_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"

_PREFILL, _DECODE = Selector(((ROLE_LABEL, "prefill"),)), Selector(((ROLE_LABEL, "decode"),))

Pod: TypeAlias = Mapping[str, Any]
"""A pod as the API server writes it in JSON."""


@dataclass(frozen=True, kw_only=True)
class PodRules:
    """How a pod is judged; see KubernetesSettings for the fields."""

    prefill: Selector = _PREFILL
    decode: Selector = _DECODE
    http_port_name: str = "http"
    bootstrap_port_name: str = "bootstrap"
    http_port: int = 0
    bootstrap_port: int = 0
    scheme: str = "http"


class Skipped(NamedTuple):
    """No target, and why not. `fault`: it will stay so until someone changes the pod's template."""

    reason: str
    fault: bool = False


def pod_target(pod: Pod, rules: PodRules) -> Target | Skipped:
    """The target that this pod is now. Never raises, whatever is missing from it."""
    metadata, spec, status = (_mapping(pod, key) for key in ("metadata", "spec", "status"))
    labels = _mapping(metadata, "labels")
    side = _side(labels, rules)
    if side is None:
        return Skipped("its labels select neither side")
    if labels.get(GROUP_INDEX_LABEL, "0") != "0":
        return Skipped("not the first pod of its group: only that one serves requests")
    phase, address = status.get("phase"), status.get("podIP")
    if phase != "Running":
        return Skipped(f"its phase is {phase}")
    if not isinstance(address, str) or not address:
        return Skipped("it has no address yet")
    target = _target(side, address, spec, metadata, status, rules)
    if isinstance(target, Skipped):
        return target
    if deleted := metadata.get("deletionTimestamp"):
        # Ready or not: it stays a worker until it is gone, so that what is under way on it can end.
        return target._replace(draining=True, reason=f"its pod is being deleted, and is to end by {deleted}")
    unready = _unready(spec, status)
    return Skipped(unready) if unready else target


def _side(labels: Mapping[str, Any], rules: PodRules) -> Side | None:
    # Never both: the settings refuse selectors that a pod could match together.
    if rules.prefill.matches(labels):
        return Side.PREFILL
    return Side.DECODE if rules.decode.matches(labels) else None


def _target(
    side: Side,
    address: str,
    spec: Mapping[str, Any],
    metadata: Mapping[str, Any],
    status: Mapping[str, Any],
    rules: PodRules,
) -> Target | Skipped:
    http = _port(spec, rules.http_port_name) or rules.http_port
    if not http:
        return Skipped(f"no container port of it is named {rules.http_port_name}", fault=True)
    url = join(rules.scheme, address, http)
    identity = f"{metadata.get('uid', '')}/{_restarts(spec, status, rules.http_port_name)}"
    try:
        if side is Side.DECODE:
            return Target.decode(url, identity=identity)
        bootstrap = _port(spec, rules.bootstrap_port_name) or rules.bootstrap_port
        if not bootstrap:
            return Skipped(f"no container port of it is named {rules.bootstrap_port_name}", fault=True)
        # The pod's own address, never a Service's: decode must reach this engine and no other.
        return Target.prefill(url, bootstrap_port=bootstrap, bootstrap_host=address, identity=identity)
    except ConfigError as error:
        return Skipped(f"its address cannot be used: {error}", fault=True)


def _unready(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Why the pod may not be routed to, empty where it may."""
    conditions = {c.get("type"): c for c in _list(status, "conditions")}
    gates = [gate.get("conditionType") for gate in _list(spec, "readinessGates")]
    # Ready waits for every gate, and the operator opens the router's only for a pod that is routed to
    # already: there, what Ready stands for is asked for one by one, without that gate.
    wanted = ["Ready"]
    if ADMITTED_GATE in gates:
        wanted = ["ContainersReady", *(str(gate) for gate in gates if gate != ADMITTED_GATE)]
    for kind in wanted:
        condition = conditions.get(kind, {})
        if condition.get("status") != "True":
            why = condition.get("message") or condition.get("reason") or ""
            return f"{kind} is {condition.get('status', 'not known')}" + (f": {why}" if why else "")
    return ""


def _port(spec: Mapping[str, Any], name: str) -> int:
    """The container port of this name, 0 where there is none."""
    for container in _list(spec, "containers"):
        for port in _list(container, "ports"):
            number = port.get("containerPort")
            if port.get("name") == name and isinstance(number, int):
                return number
    return 0


def _restarts(spec: Mapping[str, Any], status: Mapping[str, Any], http: str) -> int:
    """How often the engine's container has restarted: of all containers where none names the port.

    A helper beside the engine may restart as often as it likes: the engine is the same.
    """
    engine = {
        container.get("name")
        for container in _list(spec, "containers")
        if any(port.get("name") == http for port in _list(container, "ports"))
    }
    counts = (
        state.get("restartCount")
        for state in _list(status, "containerStatuses")
        if not engine or state.get("name") in engine
    )
    return sum(count for count in counts if isinstance(count, int))


def _mapping(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = of.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(of: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    value = of.get(key)
    return (each for each in (value if isinstance(value, list) else ()) if isinstance(each, Mapping))
