"""When a deployment's routers are to be asked soon."""

from __future__ import annotations

from typing import Any

import pytest

from plait_operator.controller.routers import waits
from plait_operator.observed import PodFact


def pod(role: str = "decode", **fields: Any) -> PodFact:
    return PodFact("p", "u", role, "r", **fields)


@pytest.mark.parametrize(
    ("pods", "soon"),
    [
        ((), False),
        ((pod(),), False),
        ((pod(containers_ready=True),), True),
        ((pod(containers_ready=True, admitted=False),), True),
        ((pod(containers_ready=True, admitted=True),), False),
        ((pod("prefill", containers_ready=True, admitted=True), pod(containers_ready=True)), True),
        ((pod(containers_ready=True, admitted=True, deleting=True),), True),
        ((pod("router", containers_ready=True),), False),
    ],
)
def test_a_gate_that_is_due_is_asked_for_soon(pods: tuple[PodFact, ...], soon: bool) -> None:
    assert waits(pods) is soon
