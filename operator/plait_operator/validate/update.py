"""What an update may not change. All else is a new revision, which a rollout brings about."""

from __future__ import annotations

from plait.contract.violation import Violation
from plait_operator.api.resource import SharedKVDeployment

IMMUTABLE = {
    "spec.engine.device": "engines of both kinds would never pair, and their pods have nothing in common",
    "spec.cache.pageSize": "pages of two sizes cannot meet in one stack",
}
"""Path of a field that is fixed once the deployment is there -> why."""


def validate_update(old: SharedKVDeployment, new: SharedKVDeployment) -> list[Violation]:
    """Violations of changing `old` into `new`. The new spec itself is `validate_spec`'s."""
    values = {
        "spec.engine.device": (old.spec.engine.device, new.spec.engine.device),
        "spec.cache.pageSize": (old.spec.cache.page_size, new.spec.cache.page_size),
    }
    return [
        Violation(
            path,
            after,
            f"cannot be changed from {before}: {IMMUTABLE[path]}",
            f"{before}, or another deployment beside this one",
        )
        for path, (before, after) in values.items()
        if before != after
    ]
