"""All children but the engines' workloads: what a deployment has once, whatever its revisions are."""

from __future__ import annotations

from plait_operator.children.accounts import accounts
from plait_operator.children.autoscalers import autoscalers
from plait_operator.children.budgets import budgets
from plait_operator.children.context import Context
from plait_operator.children.monitors import monitors
from plait_operator.children.policies import policies
from plait_operator.children.roles import prefill_role
from plait_operator.children.router import router
from plait_operator.children.services import services
from plait_operator.observed import Manifest


def static(ctx: Context) -> list[Manifest]:
    """Every such child, what others depend on first; the order depends on nothing but the spec."""
    return [
        *accounts(ctx),
        # Before any pod: one that starts without them talks to everybody for a moment.
        *policies(ctx),
        *services(ctx),
        *budgets(ctx),
        prefill_role(ctx),
        *autoscalers(ctx),
        *monitors(ctx),
        router(ctx),
    ]
