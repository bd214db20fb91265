"""Metrics: every name that is defined is exported, with the engines' figures and the processes'."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.router.conftest import Lab, RunningRouter
from tests.unit.router.stub_engine import chat_events, status, streams, wait_for_ever

from plait.contract.status import GatherCounts, KernelStatus, PeerCounts, RankStatus, SplitCounts
from plait.router.metrics import RouterMetrics, imbalance, mean_run
from plait.router.report import Report
from plait.telemetry import metrics as names


async def value(router: RunningRouter, name: str, **labels: str) -> float | None:
    """One sample of the router's own scrape."""
    await router.board.refresh()
    for family in text_string_to_metric_families(router.board.render().decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return None


async def test_every_defined_metric_is_exported_with_its_labels(lab: Lab) -> None:
    router = await lab.router(status_cache=0.0, worker_limit=1)
    for engine in router.engines:
        assert engine.status is not None
        engine.status.ranks[0].split = SplitCounts(forwards=1, tokens=10, max_tokens=6, mean_tokens=5.0)
        engine.status.ranks[0].gather = GatherCounts(run_pages=6, runs=2)
    router.decode.behave = streams(chat_events(["a", "b"]), pause=0.01)
    chat = {"messages": [], "stream": True}
    # One of them waits for the other.
    await asyncio.gather(*(router.post("/v1/chat/completions", chat) for _ in range(2)))
    router.prefill.behave, router.decode.behave = status(500), wait_for_ever
    await router.post("/generate", {"text": "x"})
    await router.until(lambda: bool(router.decode.aborts))
    await router.until_idle()
    await router.board.refresh()
    families = {f.name: f for f in text_string_to_metric_families(router.board.render().decode())}
    # A further try needs two workers of a side: requests/test_retries has it. Here it is only named.
    assert families.pop(names.RETRIES.name).samples == []
    for metric in set(names.ALL_METRICS) - {names.RETRIES}:
        family = families.pop(metric.name)
        assert family.type == metric.kind, metric.name
        assert family.documentation == metric.help
        samples = family.samples
        assert samples, f"{metric.name} has no sample"
        assert all(set(s.labels) - {"le"} == set(metric.labels) for s in samples), metric.name
        assert metric.sample_name in {s.name for s in samples}
    assert not families, "exported, but not defined in plait.telemetry.metrics"


async def test_figures_are_the_engines_own(router: RunningRouter) -> None:
    where = {"side": "prefill", "worker": router.prefill.url, "rank": "1"}
    assert await value(router, names.CACHE_PAGES.name, state="owned", **where) == 101
    assert await value(router, "plait_transfer_pages_total", **where) == 8
    capacity = {"side": "prefill", "worker": router.prefill.url, "layout": "in_force"}
    assert await value(router, "plait_capacity_tokens", **capacity) == 12_800
    decode = {"side": "decode", "worker": router.decode.url}
    assert await value(router, "plait_router_worker_ready", **decode) == 1
    assert await value(router, "plait_router_pairs_ready") == 1
    await router.decode.stop()
    await router.until(lambda: not router.state.workers.pairs())
    assert await value(router, "plait_router_worker_ready", **decode) == 0
    assert await value(router, "plait_router_pairs_ready") == 0


async def test_gathers_peers_and_kernels_are_told(lab: Lab) -> None:
    router = await lab.router(status_cache=0.0)
    status = router.prefill.status
    assert status is not None
    status.ranks[1].gather = GatherCounts(
        batches={"copy": 5, "peer-view": 2}, runs=4, run_pages=12, fragment_pages=3
    )
    status.ranks[1].peers = PeerCounts(state="refused", reason="2 hosts", fallbacks=1, timeouts=7)
    status.kernels = [
        KernelStatus(name="pull", implementation="triton"),
        KernelStatus(name="store_mla", implementation="triton"),
        KernelStatus(name="store_index", implementation="torch", reason="differs"),
    ]
    worker = {"side": "prefill", "worker": router.prefill.url}
    rank = {**worker, "rank": "1"}
    paths = ("none", "copy", "pull", "collective", "peer-view")
    told = [await value(router, "plait_gather_batches_total", path=path, **rank) for path in paths]
    assert told == [0, 5, 0, 0, 2]
    parts = [
        await value(router, "plait_gather_pages_total", part=part, **rank) for part in ("run", "fragment")
    ]
    assert parts == [12, 3]
    assert await value(router, "plait_gather_runs_total", **rank) == 4
    assert await value(router, "plait_gather_run_pages", **rank) == 3
    states = ("unused", "off", "mapped", "refused")
    told = [await value(router, "plait_peer_memory", state=state, **rank) for state in states]
    assert told == [0, 0, 0, 1]
    assert await value(router, "plait_peer_memory", state="unused", **{**rank, "rank": "0"}) == 1
    assert await value(router, "plait_peer_fallbacks_total", **rank) == 1
    assert await value(router, "plait_barrier_timeouts_total", **rank) == 7
    assert await value(router, "plait_kernels", implementation="triton", **worker) == 2
    assert await value(router, "plait_kernels", implementation="torch", **worker) == 1


async def test_figures_of_the_processes_are_added_up(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = router.prefill.url
    reports = [
        Report(pid=7, in_flight=2, queued=1, legs={url: 2}, breakers={url: "open"}),
        Report(pid=8, in_flight=3, queued=4, legs={url: 3}, breakers={url: "closed"}),
    ]

    async def ask() -> list[Report]:
        return reports

    monkeypatch.setattr(router.board, "_ask", ask)
    assert await value(router, "plait_router_processes") == 2
    assert await value(router, "plait_router_in_flight") == 5
    assert await value(router, "plait_router_queued") == 5
    worker = {"side": "prefill", "worker": url}
    assert await value(router, "plait_router_worker_in_flight", **worker) == 5
    states = [
        await value(router, "plait_router_breaker", state=s, **worker)
        for s in ("closed", "open", "half-open")
    ]
    assert states == [1, 1, 0]


async def test_source_of_workers_tells_how_it_is(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await value(router, "plait_router_discovery_problem", source="flags") == 0
    assert await value(router, "plait_router_discovery_age_seconds", source="flags") == 0
    monkeypatch.setattr(router.board.source, "problem", "the file is gone")
    assert await value(router, "plait_router_discovery_problem", source="flags") == 1


async def test_stream_is_timed(router: RunningRouter) -> None:
    """Gaps between pieces, first byte, both phases: one observation each, of the right size."""
    router.prefill.behave = streams([b'data: {"text": "x"}\n\n', b"data: [DONE]\n\n"], pause=0.0)
    router.decode.behave = streams(chat_events(["a", "b", "c"]), pause=0.03)
    await router.post("/v1/chat/completions", {"messages": [], "stream": True})
    await router.until_idle()

    async def both(name: str, **labels: str) -> tuple[float, float]:
        count, total = [await value(router, f"{name}_{part}", **labels) for part in ("count", "sum")]
        assert count is not None
        assert total is not None
        return count, total

    count, total = await both("plait_router_inter_token_seconds")
    assert 4 <= count <= 6  # six pieces, where none came together
    assert total >= 0.09
    assert (await both("plait_router_phase_seconds", phase="decode"))[0] == 1
    assert (await both("plait_router_phase_seconds", phase="decode"))[1] >= 0.12
    assert (await both("plait_router_phase_seconds", phase="prefill"))[0] == 1
    count, first = await both("plait_router_first_byte_seconds", route="/v1/chat/completions")
    whole = (await both("plait_router_request_seconds", route="/v1/chat/completions"))[1]
    assert count == 1
    assert 0 < first <= whole - 0.12
    for side in ("prefill", "decode"):
        assert (await both("plait_router_connect_seconds", side=side))[0] >= 1


async def test_prefix_that_was_sent_before_is_counted(router: RunningRouter) -> None:
    prompt = "word " * 2000
    pages = []
    for _ in range(2):
        await router.post("/generate", {"text": prompt})
        parts = [await value(router, "plait_router_prefix_pages_total", part=p) for p in ("all", "matched")]
        pages.append(parts)
    (every, matched), (every_2, matched_2) = pages
    assert every > 10
    assert matched == 0
    assert (every_2, matched_2) == (2 * every, every)
    assert await value(router, "plait_router_placements_total", why="owner") == 1
    assert await value(router, "plait_router_placements_total", why="home") == 1


def test_requests_are_counted_by_outcome() -> None:
    metrics = RouterMetrics()
    route = metrics.route("/generate")
    for _ in range(2):
        route.ended("ok", arrived=10.0, first=10.5, now=11.5)
    route.ended("client_gone", arrived=10.0, first=None, now=10.5)
    tallies = metrics.tallies
    assert tallies.count(names.REQUESTS, "/generate", "ok").value == 2
    assert tallies.count(names.REQUESTS, "/generate", "client_gone").value == 1
    assert tallies.timing(names.REQUEST_SECONDS, "/generate").sum == 3.5
    first = tallies.timing(names.FIRST_BYTE_SECONDS, "/generate")
    assert (sum(first.counts), first.sum) == (2, 1.0)


def test_two_routers_do_not_share_counters() -> None:
    one, other = RouterMetrics(), RouterMetrics()
    one.route("/generate").ended("ok", arrived=0, first=None, now=1)
    counts = [m.tallies.count(names.REQUESTS, "/generate", "ok").value for m in (one, other)]
    assert counts == [1, 0]


async def test_processes_that_have_ended_count_on(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok = {"route": "/generate", "outcome": "ok"}
    await router.post("/generate", {"text": "x"})
    assert await value(router, "plait_router_requests_total", **ok) == 1
    monkeypatch.setattr(router.board, "_ended", lambda: [(names.REQUESTS.name, ("/generate", "ok"), [41.0])])
    assert await value(router, "plait_router_requests_total", **ok) == 42


def test_a_mean_run_needs_one() -> None:
    rank = RankStatus(rank=0, pid=1, updated_at=0)
    assert mean_run(rank) is None
    rank.gather = GatherCounts(run_pages=7, fragment_pages=5, runs=2)
    assert mean_run(rank) == 3.5


def test_imbalance_needs_a_forward() -> None:
    rank = RankStatus(rank=0, pid=1, updated_at=0)
    assert imbalance(rank) is None
    rank.split = SplitCounts(max_tokens=6, mean_tokens=4.0)
    assert imbalance(rank) == 1.5
