"""A router's answer to GET /api/v1/groups as facts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from plait_operator.observed import EngineFact, RouterFact

_LONGEST: Final = 600
"""Characters of an engine's trouble: it becomes the message of a pod's condition."""
_MOST: Final = 1 << 53
"""Of anything that is counted: more than that no JSON reader tells exactly."""


def router_fact(pod: str, *, ready: bool, told: Any) -> RouterFact:
    """Of a router pod. `told`: the parsed body. A form that means nothing is an error in the fact."""
    groups = told.get("groups") if isinstance(told, Mapping) else None
    if not isinstance(groups, list):
        return RouterFact(pod, ready, 0.0, error="its answer has no groups: is this a Plait router?")
    try:
        facts = tuple(sorted(_engine(group) for group in groups if group.get("identity")))
    except (TypeError, ValueError, AttributeError) as error:
        return RouterFact(pod, ready, 0.0, error=f"its answer cannot be read: {error}")
    return RouterFact(pod, ready, 0.0, engines=facts)


def relevant(facts: tuple[RouterFact, ...]) -> tuple[RouterFact, ...]:
    """Without what changes all the time and decides nothing: ages, and how many requests are under way."""
    return tuple(
        fact._replace(
            age_s=0.0,
            engines=tuple(e._replace(in_flight=min(e.in_flight, 1)) for e in fact.engines),
        )
        for fact in facts
    )


def _engine(group: Mapping[str, Any]) -> EngineFact:
    wire = str(group.get("wire_hash") or "")
    capacity: Mapping[str, Any] = group.get("capacity") or {}
    trouble = " ".join(str(group.get("trouble") or "").split())
    known = bool(wire) and group.get("role") == group.get("side")
    # One late answer makes an engine suspect, and it stays in rotation until some in a row are late. A gate
    # that closed sooner would take out of service what the routers go on using.
    reached = bool(group.get("reachable")) or (bool(group.get("suspect")) and bool(group.get("ready")))
    return EngineFact(
        identity=str(group["identity"]),
        # Not `ready`: that waits for a partner, and of the first two pods one has to be first.
        taken_in=known and reached and not group.get("draining"),
        pairs=bool(group.get("ready")) and not group.get("draining"),
        trouble=trouble[:_LONGEST],
        wire_hash=wire,
        group_hash=str(group.get("group_hash") or ""),
        tokens=_count(capacity.get("tokens")),
        tokens_replicated=_count(capacity.get("tokens_replicated")),
        in_flight=_count(group.get("in_flight")),
    )


def _count(told: Any) -> int:
    """A count, 0 where none is told. Raises ValueError, TypeError.

    What is out of all range counts as not told: in a status it could not be written, and an engine that
    counts wrong is no reason not to believe what the router says of the others.
    """
    number = int(told or 0)
    return number if 0 <= number <= _MOST else 0
