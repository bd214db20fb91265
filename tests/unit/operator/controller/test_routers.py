"""When a deployment's routers are asked, and what becomes of their answers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from plait_operator.api.base import API_VERSION
from plait_operator.apply.meters import Meters
from plait_operator.controller import routers
from plait_operator.controller.asking import Answer, MuteError, TooLongError
from plait_operator.controller.groups import router_fact
from plait_operator.controller.routers import CALM_S, STEADY_S, RouterWatch, waits
from plait_operator.controller.store import Key, Store
from plait_operator.names import ADMITTED_GATE, INSTANCE, ROLE
from plait_operator.observed import EngineFact, PodFact, RouterFact
from plait_operator.plan.gates import STALE_S


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


KEY = Key("ns", "demo")


class Routers:
    """A watch of one deployment with two routers and a decode pod, and what the routers answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, bytes | Exception] = {}
        self.asked: list[str] = []
        self.read = 0
        self.changed: list[Key] = []
        self.meters = Meters()
        store = Store()
        meta = {"name": "demo", "namespace": "ns", "uid": "d1", "resourceVersion": "1"}
        store.put_deployment({"apiVersion": API_VERSION, "kind": "SharedKVDeployment", "metadata": meta})
        for number, role in enumerate(("router", "router", "decode")):
            store.put(_pod(f"p{number}", role, ip=f"10.0.0.{number}", version=number + 2))
        self.store = store
        self.watch = RouterWatch(
            store=store, changed=self.changed.append, active=lambda: True, meters=self.meters
        )
        monkeypatch.setattr(routers, "ask", self._ask)
        monkeypatch.setattr(routers, "router_fact", self._fact)
        monkeypatch.setattr("random.uniform", lambda low, high: 1.0)

    async def _ask(self, address: str, port: int, path: str, *, timeout_s: float, longest: int) -> Answer:
        self.asked.append(address)
        told = self.answers.get(address, b'{"groups": []}')
        if isinstance(told, Exception):
            raise told
        return Answer(200, told)

    def _fact(self, *given: Any, **named: Any) -> RouterFact:
        self.read += 1
        return router_fact(*given, **named)

    def round(self) -> float:
        """One round; the pause after it."""
        began = time.monotonic()
        asyncio.run(self.watch._round(KEY))
        return round(self.watch._next[KEY] - began)


def _pod(name: str, role: str, *, ip: str, version: int) -> dict[str, Any]:
    held = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r1", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": str(version),
            "labels": {INSTANCE: "demo", ROLE: role}, "ownerReferences": [held],
        },
        "status": {
            "podIP": ip, "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", ADMITTED_GATE)
            ],
        },
    }  # fmt: skip


def test_the_same_answer_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Routers(monkeypatch)
    for _ in range(3):
        told.round()
    assert told.asked == ["10.0.0.0", "10.0.0.1"] * 3
    assert told.read == 2
    assert told.changed == [KEY], "only the first time"
    assert [fact.error for fact in told.store.routers(KEY)] == ["", ""]
    told.answers["10.0.0.1"] = b'{"groups": [{"identity": "u-p2/0", "trouble": "late"}]}'
    told.round()
    assert told.read == 3
    assert told.changed == [KEY, KEY]
    assert told.store.routers(KEY)[1].engines[0].trouble == "late"


def test_an_answer_that_was_none_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Routers(monkeypatch)
    told.round()
    for trouble in (MuteError("TimeoutError"), TooLongError(), b"no JSON", b"{}"):
        told.answers["10.0.0.0"] = trouble
        told.round()
        assert told.store.routers(KEY)[0].error
    told.answers.clear()
    told.round()
    assert told.store.routers(KEY)[0].error == ""
    assert told.read == 2 + 1 + 1, "what is no answer of a router is read each time; then it is one again"


def test_steady_routers_are_asked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Routers(monkeypatch)
    pauses = [told.round() for _ in range(6)]
    assert pauses == [CALM_S] * 3 + [STEADY_S] * 3
    told.answers["10.0.0.0"] = b'{"groups": [{"identity": "u-p2/0", "in_flight": 3}]}'
    assert told.round() == CALM_S, "it says something new"
    told.answers["10.0.0.1"] = MuteError("TimeoutError")
    assert [told.round() for _ in range(6)] == [CALM_S] * 6, "one of them does not answer"


def test_no_answer_is_stale_before_the_next_one() -> None:
    assert STEADY_S * 1.1 + routers._TIMEOUT_S + 1.0 < STALE_S


def test_nothing_is_kept_of_a_deployment_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Routers(monkeypatch)
    told.round()
    assert KEY in told.watch._told
    told.store.drop_deployment(KEY)
    told.watch._begin_rounds()
    watch = told.watch
    assert [*watch._told, *watch._steady, *watch._silent, *watch._next] == []
