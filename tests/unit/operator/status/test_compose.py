"""The whole status: counts, capacity, hashes, and that nothing moves while nothing happens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.status.cases import (
    BEFORE,
    NEW,
    NONE_READY,
    NOW,
    OLD,
    READY,
    VIEW,
    conditions,
    context,
    deployment,
    observed,
    pod,
    routers,
    starting,
    told,
)

from plait_operator.api.reasons import Reason
from plait_operator.api.status import SharedKVDeploymentStatus
from plait_operator.observed import EngineFact, Observed, PodFact, RouterFact
from plait_operator.status import RoleView, View, role_status_of, status_json, status_of

LATER = "2026-01-02T09:09:09Z"


def test_counts_endpoint_and_selector() -> None:
    view = VIEW._replace(
        decode=RoleView(wanted=3, revision=NEW, pods=4, ready=2, serving=1, updated=2, updated_ready=1)
    )
    status = told(view=view)
    assert status_json(status)["decode"] == {
        "replicas": 4,
        "ready": 2,
        "available": 1,
        "updated": 2,
        "pods": "2/3",
        "revision": NEW,
    }
    assert status.observed_generation == 7
    assert status.endpoint == "http://glm.serving.svc"
    assert status.decode_selector == (
        "app.kubernetes.io/instance=glm,app.kubernetes.io/managed-by=plait-operator,plait.dev/role=decode"
    )


@pytest.mark.parametrize(
    ("router", "endpoint"),
    [
        ({"service": {"port": 8000}}, "http://glm.serving.svc:8000"),
        ({"tls": {"secretRef": {"name": "t"}}}, "https://glm.serving.svc:80"),
        ({"tls": {"secretRef": {"name": "t"}}, "service": {"port": 443}}, "https://glm.serving.svc"),
    ],
)
def test_endpoints(router: dict[str, object], endpoint: str) -> None:
    assert told(of=deployment(router=router)).endpoint == endpoint


def test_hashes_are_the_contracts_and_stay_while_there_is_none() -> None:
    status = told()
    contract = context(deployment()).contract
    assert contract is not None
    assert (status.contract.wire, status.contract.group) == (contract.wire.hash, contract.hash)
    again = told(of=deployment(status=status), known=False)
    assert again.contract == status.contract
    assert again.capacity == status.capacity
    assert told(known=False).contract.wire == ""


def test_capacity_is_estimated_until_it_is_reported() -> None:
    planned = told().capacity
    assert planned is not None
    assert planned.source == "estimated"
    said = told(observed(routers=routers(tokens=planned.tokens_shared - 5120))).capacity
    assert said is not None
    assert (said.source, said.tokens_shared) == ("reported", planned.tokens_shared - 5120)


def test_the_smallest_group_counts_and_only_the_newest_revision() -> None:
    small, smaller = 3_000_320, 2_999_808
    seen = observed(
        pod(revision=OLD, name="old"),
        routers=(
            RouterFact(
                "r0",
                True,
                1.0,
                "",
                (
                    EngineFact("uid-p0/1", True, True, tokens=small),
                    EngineFact("uid-p1/1", True, True, tokens=smaller),
                    EngineFact("uid-old/1", True, True, tokens=512),
                    EngineFact("uid-d0/1", True, True, tokens=512),
                    EngineFact("uid-p00/1", True, True, tokens=512),
                ),
            ),
        ),
    )
    capacity = told(seen).capacity
    assert capacity is not None
    assert capacity.tokens_shared == smaller


@pytest.mark.parametrize(
    ("tokens", "mismatch"), [(3_000_320, False), (2_400_256, False), (2_000_384, True), (5_000_192, True)]
)
def test_a_report_far_from_the_estimate_is_degraded_with_both_figures(tokens: int, mismatch: bool) -> None:
    assert tokens % 512 == 0
    status = told(observed(routers=routers(tokens=tokens)))
    planned = told().capacity
    assert planned is not None
    degraded = conditions(status)["Degraded"]
    assert degraded.reason == ("CapacityMismatch" if mismatch else "Healthy")
    assert (str(tokens) in degraded.message, str(planned.tokens_shared) in degraded.message) == (
        mismatch,
    ) * 2


def test_a_report_that_is_no_pool_is_told() -> None:
    status = told(observed(routers=routers(tokens=1000)))
    assert status.capacity is not None
    assert status.capacity.source == "estimated"
    assert "1000" in conditions(status)["Degraded"].message


def test_a_report_stays_while_no_router_answers() -> None:
    before = told(observed(routers=routers(tokens=2_000_384)))
    after = told(observed(routers=(RouterFact("r0", False, 99.0, "timeout"),)), of=deployment(status=before))
    assert after.capacity == before.capacity
    assert conditions(after)["Degraded"].reason == "CapacityMismatch"


def test_a_report_of_another_contract_does_not_stay() -> None:
    before = told(observed(routers=routers(tokens=2_000_384)))
    other = deployment(status=before, prefill={"contextParallel": 4})
    after = told(observed(), of=other).capacity
    assert after is None or after.source == "estimated"


def test_transition_times_are_kept_while_a_status_stays() -> None:
    first = told(observed(now=BEFORE))
    assert {c.last_transition_time for c in first.conditions} == {BEFORE}
    view = VIEW._replace(decode=NONE_READY)
    second = conditions(told(view=view, of=deployment(status=first)))
    moved = {kind for kind, c in second.items() if c.last_transition_time == NOW}
    assert moved == {"DecodeReady", "Available", "Progressing"}
    assert {c.last_transition_time for c in second.values()} == {BEFORE, NOW}


def test_a_new_reason_alone_moves_no_time() -> None:
    first = told(observed(now=BEFORE), VIEW._replace(decode=NONE_READY))
    crash = observed(starting("decode", "d0", restarts=5, terminated="x"))
    ready = conditions(told(crash, VIEW._replace(decode=NONE_READY), of=deployment(status=first)))[
        "DecodeReady"
    ]
    assert (ready.reason, ready.last_transition_time) == ("CrashLooping", BEFORE)


def test_conditions_carry_the_generation_that_they_were_made_of() -> None:
    assert {c.observed_generation for c in told(of=deployment(generation=9)).conditions} == {9}


def test_role_status() -> None:
    told_ = status_json(role_status_of(READY, deployment="glm", role="prefill"))
    assert told_ == {
        "replicas": 2,
        "ready": 2,
        "selector": "app.kubernetes.io/instance=glm,app.kubernetes.io/managed-by=plait-operator,"
        "plait.dev/role=prefill",
    }


def test_what_is_stored_is_read_back_as_it_was() -> None:
    status = told(observed(routers=routers(tokens=2_000_384)))
    assert SharedKVDeploymentStatus.model_validate(status_json(status)) == status


QUIET = [
    # Two looks at the same state of things: only what has no weight differs.
    (observed(now=BEFORE), observed(now=LATER)),
    (
        observed(starting(restarts=4, terminated="boom", waiting="CrashLoopBackOff: engine: boom")),
        observed(starting(restarts=7, terminated="boom", waiting="")),
    ),
    (
        observed(starting(unschedulable="0/5 nodes are available: 5 Insufficient nvidia.com/gpu.")),
        observed(starting(unschedulable="0/9 nodes are available: 9 Insufficient nvidia.com/gpu.")),
    ),
    (
        observed(
            starting("decode", "d1", waiting="ImagePullBackOff: engine: x"),
            starting("decode", "d0", waiting="ImagePullBackOff: engine: x"),
        ),
        observed(
            starting("decode", "d0", waiting="ImagePullBackOff: engine: x"),
            starting("decode", "d1", waiting="ImagePullBackOff: engine: x"),
        ),
    ),
    (
        observed(
            routers=(
                RouterFact(
                    "r0", True, 0.1, "", (EngineFact("uid-p0/1", True, True, tokens=3_000_320, in_flight=3),)
                ),
            )
        ),
        observed(
            routers=(
                RouterFact(
                    "r0", True, 9.9, "", (EngineFact("uid-p0/1", True, True, tokens=3_000_320, in_flight=99),)
                ),
            )
        ),
    ),
]


@pytest.mark.parametrize("view", [VIEW, VIEW._replace(prefill=NONE_READY, decode=NONE_READY)])
@pytest.mark.parametrize(("first", "second"), QUIET)
def test_nothing_moves_while_nothing_happens(first: Observed, second: Observed, view: View) -> None:
    before = told(first, view)
    assert told(second, view, of=deployment(status=before)) == before


ROLES = st.builds(
    RoleView,
    wanted=st.integers(0, 3),
    revision=st.sampled_from(["", NEW]),
    pods=st.integers(0, 4),
    ready=st.integers(0, 4),
    serving=st.integers(0, 4),
    updated=st.integers(0, 4),
    updated_ready=st.integers(0, 4),
)
VIEWS = st.builds(
    View,
    prefill=ROLES,
    decode=ROLES,
    router=ROLES,
    inspect=st.sampled_from(["known", "running", "failed"]),
    stuck=st.sampled_from(["", "stuck"]),
    rolling=st.booleans(),
    removing=st.booleans(),
)
PODS = st.lists(
    st.builds(
        starting,
        st.sampled_from(["prefill", "decode", "router"]),
        st.sampled_from(["a", "b", "c"]),
        restarts=st.integers(0, 5),
        waiting=st.sampled_from(["", "ImagePullBackOff: x", "CreateContainerError: y", "Odd: z"]),
        unschedulable=st.sampled_from(["", "no node"]),
        preflight=st.sampled_from(["", "not JSON", pod().preflight]),
        preflight_failed=st.booleans(),
        deleting=st.booleans(),
    ),
    max_size=3,
)


@settings(max_examples=100, deadline=None)
@given(view=VIEWS, pods=PODS, known=st.booleans())
def test_whatever_is_seen_there_is_one_stable_status(view: View, pods: list[PodFact], known: bool) -> None:
    seen = observed(*pods, now=BEFORE)
    status = told(seen, view, known=known)
    assert [c.reason in set(Reason) for c in status.conditions] == [True] * 9
    assert all(c.status in ("True", "False", "Unknown") and len(c.message) <= 1000 for c in status.conditions)
    of = deployment(status=status)
    order = reversed(pods) if len({each.name for each in pods}) == len(pods) else pods
    later = observed(*order, now=LATER)
    assert status_of(of, later, context(of) if known else None, view) == status
    found = conditions(status)
    # Success never comes from pods of an old revision, and nothing is both well and not.
    for role, kind in (("prefill", "PrefillReady"), ("decode", "DecodeReady")):
        if found[kind].status == "True":
            assert getattr(view, role).updated_ready >= getattr(view, role).wanted > 0
    if found["Degraded"].status == "True" and not view.stuck:
        assert Reason(found["Degraded"].reason).lasting
