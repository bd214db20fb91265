"""The registry: which workers there are, which are paired, and whose turn it is. No engine runs here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.router.conftest import CALM
from tests.unit.router.stub_engine import engine_status

from plait.router.body import Route
from plait.router.config import PrefillTarget, RouterConfig
from plait.router.discovery.target import Target
from plait.router.errors import RouterError
from plait.router.placement.hashing import PrefixKeys, prefix_keys
from plait.router.placement.policy import Why
from plait.router.registry import Lease, Registry
from plait.router.workers import Worker

P1 = Target.prefill("http://127.0.0.1:1", bootstrap_port=8998)
P2 = Target.prefill("http://127.0.0.1:2", bootstrap_port=8998)
D1 = Target.decode("http://127.0.0.1:3")
D2 = Target.decode("http://127.0.0.1:4")


class Bench:
    """A registry whose engines say what the test says."""

    def __init__(self, **settings: Any) -> None:
        given = {"prefill": [PrefillTarget("http://p:1", 8998)], "decode": ["http://d:1"], "deadlines": CALM}
        self.registry = Registry(RouterConfig(**(given | settings)))
        self.polled: list[Worker] = []
        self.forgotten: list[Worker] = []
        self.registry.health.watch = self.polled.append  # type: ignore[method-assign]
        self.registry.health.forget = self.forgotten.append  # type: ignore[method-assign]

    def list(self, *targets: Target) -> None:
        self.registry.set_targets(targets)

    def alive(self, *targets: Target, wire: str = "wire-a", started_at: float = 1.0) -> None:
        """List these, all with a good status."""
        self.list(*targets)
        for target in targets:
            self.tell(target, wire=wire, started_at=started_at)

    def tell(self, target: Target, *, wire: str = "wire-a", started_at: float = 1.0) -> None:
        status = engine_status(target.side, wire_hash=wire, cp=1)
        worker = self[target]
        old = worker.id
        if worker.take(status.model_copy(update={"started_at": started_at})):
            self.registry.health._restarted(worker, old)

    def __getitem__(self, target: Target) -> Worker:
        worker = self.registry.worker(target.url)
        assert worker is not None
        return worker

    def pick(self, **how: Any) -> Lease:
        lease = self.registry.pick(how.pop("keys", None), **how)
        assert lease is not None
        return lease


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    async with made.registry:
        yield made


def refusal(bench: Bench) -> RouterError:
    with pytest.raises(RouterError) as caught:
        bench.registry.must_have_pair()
    assert caught.value.status == 503
    return caught.value


def keys_of(text: str) -> PrefixKeys:
    return prefix_keys({"prompt": text}, Route.COMPLETIONS, body=b"")


# --- who there is ------------------------------------------------------------------------------------------


async def test_listed_workers_are_polled_and_the_rest_is_left(bench: Bench) -> None:
    bench.list(P1, D1)
    assert [w.url for w in bench.registry.workers] == [P1.url, D1.url]
    assert [w.url for w in bench.polled] == [P1.url, D1.url]
    bench.list(P1, D2)
    assert [w.url for w in bench.registry.workers] == [P1.url, D2.url]
    assert [w.url for w in bench.forgotten] == [D1.url]
    assert len(bench.polled) == 3
    assert bench.registry.worker(D1.url) is None


async def test_same_list_again_changes_nothing(bench: Bench) -> None:
    bench.alive(P1, D1)
    before = list(bench.registry.workers)
    bench.list(P1, D1)
    assert list(bench.registry.workers) == before
    assert not bench.forgotten


@pytest.mark.parametrize(
    "other",
    [
        P1._replace(identity="another pod"),
        P1._replace(bootstrap_port=9000),
        P1._replace(bootstrap_host="10.0.0.9"),
        Target.decode(P1.url),
    ],
)
async def test_another_engine_at_the_same_address_is_another_worker(bench: Bench, other: Target) -> None:
    bench.alive(P1, D1)
    old = bench[P1]
    bench.list(other, D1)
    assert bench[other] is not old
    assert bench[other].trouble, "it has not been asked yet"
    assert bench.forgotten == [old]


async def test_source_that_drains_a_worker_keeps_it(bench: Bench) -> None:
    bench.alive(P1, D1)
    worker = bench[D1]
    bench.list(P1, D1._replace(draining=True, reason="the pod is terminating"))
    assert bench[D1] is worker
    assert bench.registry.pick(None) is None
    assert bench.registry.reasons()[D1.url] == "the pod is terminating"
    assert refusal(bench).code == "no_pair"
    bench.list(P1, D1)
    assert bench.registry.pick(None) is not None


async def test_withdrawn_worker_gets_nothing_until_it_is_given_back(bench: Bench) -> None:
    bench.alive(P1, D1, D2)
    bench.registry.withdraw([D1.url])
    assert {bench.pick().decode.url for _ in range(4)} == {D2.url}
    bench.registry.withdraw([])
    assert bench.pick().decode.url == D1.url


async def test_withdrawal_holds_for_a_worker_that_is_listed_later(bench: Bench) -> None:
    bench.registry.withdraw([D1.url])
    bench.alive(P1, D1)
    assert bench.registry.pick(None) is None


async def test_worker_that_is_removed_finishes_what_it_has(bench: Bench) -> None:
    bench.alive(P1, D1, D2)
    lease = bench.pick()
    gone = lease.decode
    retired: list[Worker] = []
    gone.pool.retire = lambda: retired.append(gone)  # type: ignore[method-assign]
    bench.list(P1, D2 if gone.url == D1.url else D1)
    assert bench.registry.leaving == [gone]
    assert retired == []
    lease.give_back()
    assert bench.registry.leaving == []
    assert retired == [gone]


async def test_idle_worker_that_is_removed_retires_at_once(bench: Bench) -> None:
    bench.alive(P1, D1)
    retired: list[str] = []
    bench[D1].pool.retire = lambda: retired.append(D1.url)  # type: ignore[method-assign]
    bench.list(P1)
    assert bench.registry.leaving == []
    assert retired == [D1.url]


# --- pairs -------------------------------------------------------------------------------------------------


async def test_only_equal_contracts_are_paired(bench: Bench) -> None:
    bench.alive(P1, D1)
    bench.list(P1, P2, D1, D2)
    bench.tell(P2, wire="wire-b")
    bench.tell(D2, wire="wire-b")
    assert {(p.prefill.url, p.decode.url) for p in bench.registry.pairs()} == {
        (P1.url, D1.url),
        (P2.url, D2.url),
    }
    for _ in range(6):
        lease = bench.pick()
        assert lease.prefill.wire == lease.decode.wire
    bench.tell(D2, wire="wire-c")
    assert {bench.pick().prefill.url for _ in range(4)} == {P1.url}
    assert "no decode engine has its contract wire-b" in bench.registry.reasons()[P2.url]


async def test_pair_needs_a_contract(bench: Bench) -> None:
    bench.alive(P1, D1, wire="")
    assert bench.registry.pick(None) is None
    assert refusal(bench).code == "no_pair"
    assert "wire_hash is empty" in bench.registry.reasons()[P1.url]


async def test_busy_pair_is_a_pair(bench: Bench) -> None:
    bench.alive(P1, D1)
    bench[D1].limit = 1
    bench.pick()
    assert bench.registry.pick(None) is None
    bench.registry.must_have_pair()


async def test_pair_whose_breakers_are_open_says_when_to_come_again(bench: Bench) -> None:
    bench.alive(P1, D1)
    for _ in range(3):
        bench[D1].breaker.failed(bench[D1].breaker.take())
    error = refusal(bench)
    assert (error.status, error.code) == (503, "no_pair")
    assert "circuit breaker" in error.message
    assert error.retry_after == pytest.approx(5.0, abs=0.6)
    # One that cannot serve anyway is not waited for.
    bench[D1].out("dead")
    assert refusal(bench).retry_after == 1.0
    bench[D1].trouble, bench[D1].withdrawn = "", True
    assert refusal(bench).retry_after == 1.0


async def test_another_pair_is_one_without_those_that_failed(bench: Bench) -> None:
    bench.alive(P1, P2, D1)
    ids = {t: bench[t].id for t in (P1, P2, D1)}
    assert bench.registry.pair_without(set())
    assert bench.registry.pair_without({ids[P1]})
    assert not bench.registry.pair_without({ids[P1], ids[P2]})
    assert not bench.registry.pair_without({ids[D1]})
    bench.tell(P2, wire="wire-b")
    assert not bench.registry.pair_without({ids[P1]})


# --- leases ------------------------------------------------------------------------------------------------


async def test_lease_counts_on_both_until_it_is_given_back(bench: Bench) -> None:
    bench.alive(P1, D1)
    lease = bench.pick(legs=3)
    assert (lease.prefill.in_flight, lease.decode.in_flight, lease.legs) == (3, 3, 3)
    lease.give_back()
    assert (lease.prefill.in_flight, lease.decode.in_flight) == (0, 0)
    assert (lease.prefill.load, lease.decode.load) == (0, 0)


async def test_prompt_to_compute_weighs_more_than_one_that_is_cached(bench: Bench) -> None:
    bench.alive(P1, D1)
    keys = keys_of("in the beginning " * 4000)
    first = bench.pick(keys=keys, legs=2)
    again = bench.pick(keys=keys, legs=2)
    assert first.work > again.work >= 1
    assert bench[P1].load == pytest.approx(2 * first.work + 2 * again.work)
    assert bench[D1].load == 4
    for lease in (first, again):
        lease.give_back()
    assert (bench[P1].load, bench[D1].load) == (0, 0)


async def test_lease_that_is_given_back_frees_the_probe(bench: Bench) -> None:
    bench.alive(P1, D1)
    for _ in range(3):
        bench[P1].breaker.failed(bench[P1].breaker.take())
    assert bench.registry.pick(None) is None
    bench[P1].breaker.checked(healthy=False)
    bench[P1].breaker.checked(healthy=True)
    lease = bench.pick()
    assert bench.registry.pick(None) is None, "one probe at a time"
    lease.give_back()
    assert bench.registry.pick(None) is not None


async def test_worker_that_comes_free_is_offered_to_who_waits(bench: Bench) -> None:
    bench.alive(P1, D1)
    bench[D1].limit = 1
    lease = bench.pick()
    place = bench.registry.line.join(
        lambda: bench.registry.pick(None), size=1, deadline=asyncio.get_running_loop().time() + 30
    )
    assert not place.future.done()
    lease.give_back()
    assert place.future.result().decode is bench[D1]


@pytest.mark.parametrize("how", ["listed", "alive", "withdrawn"])
async def test_worker_that_comes_is_offered_to_who_waits(bench: Bench, how: str) -> None:
    bench.list(P1, D1)
    bench.tell(P1)
    if how == "withdrawn":
        bench.tell(D1)
        bench.registry.withdraw([D1.url])
    place = bench.registry.line.join(
        lambda: bench.registry.pick(None), size=1, deadline=asyncio.get_running_loop().time() + 30
    )
    assert not place.future.done()
    if how == "listed":
        bench.list(P1, D1, D2)
        assert not place.future.done(), "it has not been asked yet"
        bench.tell(D2)
    elif how == "alive":
        bench.tell(D1)
    else:
        bench.registry.withdraw([])
    assert place.future.done()


# --- whose turn it is --------------------------------------------------------------------------------------


async def test_equals_take_turns(bench: Bench) -> None:
    bench.alive(P1, P2, D1, D2)
    chosen = []
    for _ in range(8):
        lease = bench.pick()
        chosen += [lease.prefill.url, lease.decode.url]
        lease.give_back()
    assert [chosen.count(t.url) for t in (P1, P2, D1, D2)] == [4, 4, 4, 4]


async def test_busy_worker_gets_less(bench: Bench) -> None:
    bench.alive(P1, P2, D1)
    busy = bench.pick(legs=4).prefill
    for _ in range(4):
        lease = bench.pick()
        assert lease.prefill is not busy
        lease.give_back()


async def test_suspect_worker_is_the_last_resort(bench: Bench) -> None:
    bench.alive(P1, D1, D2)
    bench[D1].suspect = True
    assert {bench.pick().decode.url for _ in range(4)} == {D2.url}
    bench[D2].limit = bench[D2].in_flight
    assert bench.pick().decode.url == D1.url


async def test_worker_that_was_tried_gets_no_other_try(bench: Bench) -> None:
    """Not even where every other is busy: the request waits for one of those."""
    bench.alive(P1, P2, D1)
    tried = bench.pick().prefill
    other = bench.pick(exclude={tried.id}).prefill
    assert other is not tried
    other.limit = other.in_flight
    assert bench.registry.pick(None, exclude={tried.id}) is None


async def test_prompt_goes_where_its_prefix_is(bench: Bench) -> None:
    bench.alive(P1, P2, D1)
    text = "in the beginning " * 200
    first = bench.pick(keys=keys_of(text))
    assert (first.why, first.matched) == (Why.HOME, 0)
    assert first.pages > 5
    first.give_back()
    again = bench.pick(keys=keys_of(text + "was the word"))
    assert again.prefill is first.prefill
    assert (again.why, again.matched) == (Why.OWNER, first.pages)


@pytest.mark.parametrize("how", ["restarted", "removed"])
async def test_what_a_dead_process_had_cached_is_forgotten(bench: Bench, how: str) -> None:
    bench.alive(P1, D1)
    keys = keys_of("in the beginning " * 200)
    for matched in (False, True):
        lease = bench.pick(keys=keys)
        assert bool(lease.matched) is matched
        lease.give_back()
    size, old = len(bench.registry.memory), bench[P1].id
    if how == "restarted":
        bench.tell(P1, started_at=2.0)
    else:
        bench.list(D1)
        bench.alive(P1, D1)
    assert bench.pick(keys=keys).matched == 0
    assert bench.registry.memory.matched(keys, old) == 0
    assert len(bench.registry.memory) == size, "hashes of the dead age away by themselves"


async def test_sticky_value_stays_with_its_pair(bench: Bench) -> None:
    bench.alive(P1, P2, D1, D2)
    seen = set()
    for number in range(6):
        lease = bench.pick(sticky="user-1", keys=keys_of(f"prompt {number} " * 100))
        assert lease.why is Why.STICKY
        seen.add((lease.prefill.url, lease.decode.url))
        lease.give_back()
    assert len(seen) == 1


@pytest.mark.parametrize("policy", ["round-robin", "random", "least-load"])
async def test_policy_is_the_configurations(policy: str) -> None:
    bench = Bench(policy=policy)
    async with bench.registry:
        bench.alive(P1, P2, D1)
        keys = keys_of("in the beginning " * 200)
        chosen = []
        for _ in range(40):
            lease = bench.pick(keys=keys)
            assert lease.why is Why.POLICY
            chosen.append(lease.prefill.url)
            lease.give_back()
        assert set(chosen) == {P1.url, P2.url}
        if policy != "random":
            assert chosen[:2] * 20 == chosen
