"""Bodies of the router API."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.router.conftest import Lab, RunningRouter

from plait.contract.status import GatherCounts, KernelStatus, PeerCounts
from plait.router import api
from plait.router.report import Report


async def test_groups_show_roles_contracts_and_pairs(router: RunningRouter) -> None:
    answer = api.groups(router.state.workers, [])
    assert answer.ready
    assert [(p.prefill, p.decode) for p in answer.pairs] == [(router.prefill.url, router.decode.url)]
    prefill, decode = answer.groups
    assert (prefill.role, prefill.layout, prefill.split, prefill.cp) == (
        "prefill",
        "shared",
        "page-interleave",
        2,
    )
    assert (prefill.bootstrap_port, decode.bootstrap_port) == (8998, None)
    assert prefill.wire_hash == decode.wire_hash == "wire-a"
    assert (prefill.bootstrap_host, decode.bootstrap_host) == ("127.0.0.1", None)
    assert prefill.pids == [1000, 1001]
    assert prefill.ready
    assert prefill.reachable
    assert not prefill.trouble


async def test_groups_show_what_each_process_of_the_router_says(router: RunningRouter) -> None:
    url = router.prefill.url
    reports = [
        Report(pid=7, in_flight=2, queued=0, legs={url: 2}, breakers={url: "open"}),
        Report(pid=8, in_flight=1, queued=0, legs={url: 1, "http://gone": 5}, breakers={url: "closed"}),
        # Its list has not come yet.
        Report(pid=9, in_flight=0, queued=0),
    ]
    prefill, decode = api.groups(router.state.workers, reports).groups
    assert (prefill.in_flight, prefill.breaker) == (3, {7: "open", 8: "closed"})
    assert (decode.in_flight, decode.breaker) == (0, {})


async def test_groups_show_who_is_suspect_or_draining(router: RunningRouter) -> None:
    prefill, decode = router.state.workers.workers
    prefill.suspect, decode.withdrawn = True, True
    prefills, decodes = api.groups(router.state.workers, []).groups
    assert (prefills.suspect, prefills.draining, decodes.suspect, decodes.draining) == (
        True,
        False,
        False,
        True,
    )
    assert "draining" in decodes.trouble
    assert not decodes.ready


async def test_cache_shows_each_rank_and_the_sum(router: RunningRouter) -> None:
    prefill, decode = api.cache(router.state.workers).workers
    assert [
        (r.rank, r.pages.owned, r.pages.free, r.pages.used, r.pages.in_flight) for r in prefill.ranks
    ] == [
        (0, 100, 60, 40, 2),
        (1, 101, 60, 41, 2),
    ]
    assert (prefill.pages.owned, prefill.pages.used) == (201, 81)
    assert prefill.capacity is not None
    assert (prefill.capacity.tokens, prefill.capacity.tokens_replicated) == (12_800, 6_400)
    assert prefill.ranks[0].split.imbalance is None
    assert (decode.layout, len(decode.ranks)) == ("plain", 1)


async def test_transfers_show_ranks_and_pairs(router: RunningRouter) -> None:
    prefill, _ = api.transfers(router.state.workers).workers
    assert [(r.rank, r.pages, r.failures) for r in prefill.ranks] == [(0, 7, 0), (1, 8, 1)]
    assert prefill.ranks[1].pairs[0].peer == "10.0.0.9:1"
    assert (prefill.total.pages, prefill.total.failures, prefill.total.seconds) == (15, 1, 1.0)


async def test_ages_grow_and_an_unreachable_engine_keeps_its_figures(lab: Lab) -> None:
    router = await lab.router(poll_interval=60.0)
    await router.decode.stop()
    await asyncio.sleep(0.3)
    await router.state.workers.refresh()
    prefill, decode = api.cache(router.state.workers).workers
    assert prefill.age_s is not None
    assert prefill.age_s < router.within(0.2)
    # The rank's own age (0.1 s when it was read) comes on top.
    assert prefill.ranks[0].age_s == pytest.approx(prefill.age_s + 0.1, abs=0.05)
    assert not decode.reachable
    assert "cannot be reached" in decode.trouble
    assert decode.age_s is not None
    assert decode.age_s > 0.3
    assert decode.ranks[0].pages.owned == 100


async def test_engine_that_never_told_has_no_figures(lab: Lab) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode")
    decode.status = None
    router = await lab.router(prefill, decode, ready=False)
    await router.until(lambda: decode.status_polls > 0 and bool(router.state.workers.workers[0].reachable))
    group = api.groups(router.state.workers, []).groups[1]
    assert (group.role, group.age_s, group.capacity, group.pids) == (None, None, None, [])
    assert api.cache(router.state.workers).workers[1].ranks == []
    assert api.transfers(router.state.workers).workers[1].total.pages == 0


async def test_figures_of_gathers_and_kernels(lab: Lab) -> None:
    router = await lab.router(status_cache=0.0)
    status = router.prefill.status
    assert status is not None
    status.ranks[0].gather = GatherCounts(
        bytes=7, seconds=0.5, hit=3, batches={"pull": 2, "none": 1}, runs=4, run_pages=12, fragment_pages=3
    )
    status.ranks[0].peers = PeerCounts(state="refused", reason="2 hosts", fallbacks=1)
    status.kernels = [KernelStatus(name="pull", implementation="torch", reason="differs")]
    await router.board.refresh()
    workers = router.state.workers
    first, second = api.cache(workers).workers[0].ranks
    assert first.gather.model_dump() == {
        "bytes": 7,
        "seconds": 0.5,
        "batches": {"pull": 2, "none": 1},
        "runs": 4,
        "run_pages": 12,
        "fragment_pages": 3,
        "mean_run": 3.0,
    }
    assert (first.peers, second.peers) == (status.ranks[0].peers, PeerCounts())
    assert second.gather.mean_run is None
    prefill, decode = api.groups(workers, []).groups
    assert (prefill.kernels, decode.kernels) == (status.kernels, [])
