"""Which optional kinds the cluster serves, asked now and then."""

from __future__ import annotations

from plait_operator.apply.errors import ApiError
from plait_operator.apply.kinds import CHILDREN, DEPLOYMENT, Kind
from plait_operator.controller.watching import Watcher


async def served(watcher: Watcher, kind: Kind) -> bool:
    """Whether the API server has the kind. Raises ApplyError when it does not say."""
    try:
        told = await watcher.read(f"/apis/{kind.api_version}")
    except ApiError as error:
        if error.missing:
            return False
        raise
    return any(r.get("name") == kind.plural for r in told.get("resources") or ())


async def optional(watcher: Watcher) -> frozenset[Kind]:
    """The optional kinds that are there. Raises ApplyError."""
    return frozenset([k for k in CHILDREN if k.optional and await served(watcher, k)])


async def own(watcher: Watcher) -> bool:
    """Whether the operator's own kinds are installed. Raises ApplyError."""
    return await served(watcher, DEPLOYMENT)
