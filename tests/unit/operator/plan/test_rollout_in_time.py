"""Whole rollouts in a simulated cluster: late sight, slow pods, changes in the middle, failures, breakage."""

from __future__ import annotations

import random

import pytest
from tests.unit.operator.plan.simulator import Cluster, Want

from plait_operator.plan.roles import ROLES, Budget


def drawn(told: random.Random, budget: Budget) -> Want:
    least = 1 if budget.max_surge else budget.max_unavailable + 1
    counts = [0 if told.random() < 0.07 else told.randint(least, 6) for _ in ROLES]
    wire = told.choice("abc")
    return Want(counts[0], counts[1], (wire + told.choice("12"), wire + told.choice("12")), budget)


def budget_of(told: random.Random) -> Budget:
    if told.random() < 0.8:
        return Budget(told.randint(0, 2), told.randint(1, 3))
    return Budget(told.randint(1, 2), 0)


@pytest.mark.parametrize("seed", range(100))
def test_changes_upon_changes(seed: int) -> None:
    """Up to four changes (revisions, wires, replicas, zero), each at any moment of the one before it."""
    told = random.Random(seed)
    budget = budget_of(told)
    cluster = Cluster(drawn(told, budget), seed, lag=told.choice([0, 0, 3, 10]))
    assert cluster.settle()
    wants = [cluster.want]
    for _ in range(told.randint(1, 4)):
        cluster.want = drawn(told, budget)
        wants.append(cluster.want)
        for turn in range(told.choice([20, 60, 150, 3000])):
            serving = {role: cluster.serving(role) for role in ROLES}
            count = {role: cluster.count(role) for role in ROLES}
            cluster.tick()
            for role in ROLES:
                # A lowering that an earlier wish allowed may still be under way.
                assert cluster.serving(role) >= min(serving[role], *(want.floor(role) for want in wants))
                if cluster.count(role) > count[role]:
                    assert cluster.count(role) <= max(want.limit(role) for want in wants)
            if turn % 10 == 0 and cluster.done():
                wants = [cluster.want]
                break
    assert cluster.settle(), cluster.last


@pytest.mark.parametrize("seed", range(60))
def test_failures(seed: int) -> None:
    """Pods that blink or are deleted, workloads that are deleted by hand: it ends where it should."""
    told = random.Random(seed)
    budget = budget_of(told)
    cluster = Cluster(drawn(told, budget), seed, lag=told.choice([0, 3]))
    assert cluster.settle()
    cluster.want = drawn(told, budget)
    for _ in range(400):
        cluster.tick(operate=told.random() < 0.7)
        role = told.choice(ROLES)
        if told.random() < 0.05 and cluster.pods[role]:
            pod = told.choice(cluster.pods[role])
            if told.random() < 0.5:
                pod.ready = False
            elif pod.deleting < 0:
                pod.deleting = 2
        if told.random() < 0.01 and cluster.workloads:
            cluster.remove(*told.choice(sorted(cluster.workloads)))
    assert cluster.settle(), cluster.last


@pytest.mark.parametrize("seed", range(60))
def test_a_broken_revision_stops_and_the_old_one_serves(seed: int) -> None:
    """The new revision of one role, or of both, never gets ready; then the former one is put back."""
    told = random.Random(seed)
    budget = Budget(told.randint(0, 1), told.randint(1, 2))
    good = Want(told.randint(2, 4), told.randint(2, 4), ("a1", "a1"), budget)
    cluster = Cluster(good, seed, lag=told.choice([0, 3]))
    assert cluster.settle()
    bad = told.choice([("a2", "a1"), ("a1", "a2"), ("b1", "b1"), ("a2", "a2")])
    cluster.broken = frozenset({told.choice([one for one in bad if one != "a1"])})
    cluster.want = Want(good.prefill, good.decode, bad, budget)
    for _ in range(800):
        cluster.tick()
        for role in ROLES:
            assert cluster.serving(role) >= good.floor(role)
            assert cluster.count(role) <= good.limit(role)
    writes = cluster.writes
    for _ in range(200):
        cluster.tick()
    assert cluster.writes == writes
    assert cluster.last is not None
    assert "CrashLoopBackOff" in cluster.last.stuck
    cluster.want = good
    for _ in range(3000):
        cluster.tick()
        for role in ROLES:
            assert cluster.serving(role) >= good.floor(role)
        if cluster.done():
            return
    pytest.fail("it never came back")


@pytest.mark.parametrize("surge", [1, 2, 4])
@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 16), (16, 2), (5, 7)])
def test_old_shares_stay_in_proportion(prefill: int, decode: int, surge: int) -> None:
    """While a wire goes, neither role's share of it runs ahead by more than a step."""
    budget = Budget(0, surge)
    cluster = Cluster(Want(prefill, decode, ("a1", "a1"), budget), 1)
    assert cluster.settle()
    cluster.want = Want(prefill, decode, ("b1", "b1"), budget)
    step_of = max(1 / prefill, 1 / decode)
    while not cluster.done():
        cluster.tick()
        old = [
            sum(
                load.replicas for (one, rev), load in cluster.workloads.items() if one == role and rev == "a1"
            )
            / cluster.want.replicas(role)
            for role in ROLES
        ]
        assert abs(old[0] - old[1]) <= step_of + 1e-9
