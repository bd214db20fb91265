"""When a pod's readiness gate opens and closes."""

from __future__ import annotations

import pytest

from plait_operator.observed import EngineFact, Observed, PodFact, RouterFact
from plait_operator.plan.gates import STALE_S, gates


def pod(
    *, admitted: bool | None = None, name: str = "p", role: str = "prefill", deleting: bool = False
) -> PodFact:
    return PodFact(
        name=name, uid=f"uid-{name}", role=role, revision="r", admitted=admitted, deleting=deleting
    )


def engine(*, of: str = "p", taken_in: bool = True, trouble: str = "", process: str = "1") -> EngineFact:
    return EngineFact(f"uid-{of}/{process}", taken_in, pairs=taken_in, trouble=trouble)


def router(*engines: EngineFact, ready: bool = True, age_s: float = 1.0, error: str = "") -> RouterFact:
    return RouterFact("r", ready, age_s, error, engines)


# UNKNOWN: a router that has just started and knows no engine.
YES, NO, UNKNOWN = router(engine()), router(engine(taken_in=False)), router()
DOWN = router(engine(), ready=False)
STALE = router(engine(), age_s=STALE_S + 0.1)
FAILED = router(error="no answer within 1 s")
OTHER = router(engine(of="q"))


@pytest.mark.parametrize("before", [None, False, True])
@pytest.mark.parametrize(
    ("routers", "wanted"),
    [
        # Wanted: True or False as more than half say; None: the gate stays as it is.
        ((), None),
        ((YES,), True),
        ((NO,), False),
        ((UNKNOWN,), None),
        ((OTHER,), False),
        ((YES, YES), True),
        ((YES, NO), None),
        ((YES, UNKNOWN), None),
        ((NO, NO), False),
        ((YES, YES, NO), True),
        ((YES, NO, NO), False),
        # A router that is not ready, does not answer, or answered long ago has no vote.
        ((DOWN,), None),
        ((STALE,), None),
        ((FAILED,), None),
        ((YES, DOWN), True),
        ((YES, FAILED), True),
        ((YES, STALE, NO), None),
        ((NO, DOWN), False),
        ((NO, STALE, FAILED, DOWN), False),
        # One router restarts: it is not ready, then ready and empty, then it knows the pod again.
        ((YES, router(ready=False, error="connection refused")), True),
        ((YES, router(error="connection refused")), True),
        ((YES, UNKNOWN, UNKNOWN), None),
        ((NO, UNKNOWN), None),
        ((NO, NO, UNKNOWN), False),
        # Two processes at one pod: the one that runs now counts.
        ((router(engine(taken_in=False, process="1"), engine(process="2")),), True),
        ((router(engine(taken_in=False, process="1"), engine(taken_in=False, process="2")),), False),
    ],
)
def test_a_gate_follows_the_quorum(
    routers: tuple[RouterFact, ...], wanted: bool | None, before: bool | None
) -> None:
    found = gates(Observed(pods=(pod(admitted=before),), routers=routers))
    # A gate that was never set is a closed one: there is nothing to close.
    unchanged = wanted is None or wanted is bool(before)
    assert [(g.pod, g.uid, g.open) for g in found] == ([] if unchanged else [("p", "uid-p", wanted)])


@pytest.mark.parametrize("routers", [(YES,), (NO,), (UNKNOWN,)])
@pytest.mark.parametrize("admitted", [None, False, True])
def test_a_pod_on_its_way_out_is_left_alone(routers: tuple[RouterFact, ...], admitted: bool | None) -> None:
    assert gates(Observed(pods=(pod(admitted=admitted, deleting=True),), routers=routers)) == []


@pytest.mark.parametrize(("role", "changes"), [("prefill", 1), ("decode", 1), ("router", 0), ("inspect", 0)])
def test_only_engines_have_a_gate(role: str, changes: int) -> None:
    assert len(gates(Observed(pods=(pod(role=role),), routers=(YES,)))) == changes


def test_a_group_has_its_gate_at_its_leader() -> None:
    pods = (pod(name="p")._replace(group="0"), pod(name="q")._replace(group="0", worker=1, admitted=True))
    assert [g.pod for g in gates(Observed(pods=pods, routers=(YES,)))] == ["p"]


def test_a_uid_is_compared_whole() -> None:
    longer = EngineFact("uid-p2/1", taken_in=True, pairs=True)
    assert gates(Observed(pods=(pod(),), routers=(router(longer),))) == []


def test_every_pod_by_itself_and_by_name() -> None:
    pods = (pod(name="b"), pod(name="a", role="decode", admitted=True), pod(name="c", admitted=True))
    found = gates(Observed(pods=pods, routers=(router(engine(of="b"), engine(of="c")),)))
    assert [(g.pod, g.open) for g in found] == [("a", False), ("b", True)]


def test_a_closed_gate_says_why() -> None:
    troubled = router(engine(taken_in=False, trouble="its wire hash has no partner"))
    [found] = gates(Observed(pods=(pod(admitted=True),), routers=(troubled, troubled)))
    assert found.why == "its wire hash has no partner"


def test_once_set_nothing_more_is_asked_for() -> None:
    for routers in ((YES,), (NO,), (YES, NO), ()):
        state = pod()
        for _ in range(3):
            for change in gates(Observed(pods=(state,), routers=routers)):
                assert change.open is not state.admitted
                state = state._replace(admitted=change.open)
        assert gates(Observed(pods=(state,), routers=routers)) == []
