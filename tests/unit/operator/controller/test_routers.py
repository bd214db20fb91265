"""When a deployment's routers are to be asked soon."""

from __future__ import annotations

from typing import Any

import pytest

from plait_operator.controller.routers import waits
from plait_operator.observed import EngineFact, PodFact, RouterFact


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
        ((pod("prefill", containers_ready=True, worker=1),), False),
    ],
)
def test_a_gate_that_is_due_is_asked_for_soon(pods: tuple[PodFact, ...], soon: bool) -> None:
    assert waits(pods, ()) is soon


def told(*taken_in: bool, error: str = "") -> tuple[RouterFact, ...]:
    """Two routers' answers about pod `u`."""
    return tuple(
        RouterFact(f"r{n}", True, 0.0, error, () if error else (EngineFact("u/0", taken, taken),))
        for n, taken in enumerate(taken_in)
    )


@pytest.mark.parametrize(
    ("facts", "soon"),
    [
        (told(True, True), False),
        (told(True, False), True),
        (told(False, False), True),
        (told(True, True, error="no answer"), True),
        ((*told(True), RouterFact("r1", True, 0.0, "no answer")), False),
        ((*told(True), RouterFact("r1", False, 0.0, "not ready")), False),
        ((RouterFact("r0", True, 0.0),), True),
        ((RouterFact("r0", True, 0.0, "", (EngineFact("u2/0", True, True),)),), True),
    ],
)
def test_nobody_asks_soon_for_what_all_routers_have_said(facts: tuple[RouterFact, ...], soon: bool) -> None:
    assert waits((pod(containers_ready=True),), facts) is soon


def test_a_pod_that_goes_is_asked_for_whatever_was_said() -> None:
    assert waits((pod(containers_ready=True, admitted=True, deleting=True),), told(True, True))
