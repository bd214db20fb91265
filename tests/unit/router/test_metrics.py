"""Metrics: every name that is defined is exported, with the engines' figures."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from tests.unit.router.conftest import Lab, RunningRouter
from tests.unit.router.stub_engine import status, wait_for_ever

from plait.contract.status import RankStatus, SplitCounts
from plait.router.metrics import RouterMetrics, imbalance
from plait.telemetry.metrics import ALL_METRICS, CACHE_PAGES


async def test_every_defined_metric_is_exported_with_its_labels(lab: Lab) -> None:
    router = await lab.router(status_cache=0.0)
    for engine in router.engines:
        assert engine.status is not None
        engine.status.ranks[0].split = SplitCounts(forwards=1, tokens=10, max_tokens=6, mean_tokens=5.0)
    await router.post("/generate", {"text": "x"})
    router.prefill.behave, router.decode.behave = status(500), wait_for_ever
    await router.post("/generate", {"text": "x"})
    await router.until(lambda: bool(router.decode.aborts))
    await router.until_idle()
    await router.state.workers.refresh()
    families = {f.name: f for f in text_string_to_metric_families(router.state.metrics.render().decode())}
    for metric in ALL_METRICS:
        family = families.pop(metric.name)
        assert family.type == metric.kind, metric.name
        assert family.documentation == metric.help
        samples = [s for s in family.samples if not s.name.endswith("_created")]
        assert samples, f"{metric.name} has no sample"
        assert all(set(s.labels) - {"le"} == set(metric.labels) for s in samples), metric.name
        assert metric.sample_name in {s.name for s in samples}
    # The client library adds the time of each counter's start.
    extra = {name for name in families if not name.endswith("_created")}
    assert not extra, "exported, but not defined in plait.telemetry.metrics"


async def test_figures_are_the_engines_own(router: RunningRouter) -> None:
    def value(metric: str, **labels: str) -> float | None:
        return router.state.metrics.registry.get_sample_value(metric, labels)

    where = {"side": "prefill", "worker": router.prefill.url, "rank": "1"}
    assert value(CACHE_PAGES.name, state="owned", **where) == 101
    assert value("plait_transfer_pages_total", **where) == 8
    assert (
        value("plait_capacity_tokens", side="prefill", worker=router.prefill.url, layout="in_force") == 12_800
    )
    assert value("plait_router_worker_ready", side="decode", worker=router.decode.url) == 1
    await router.decode.stop()
    await router.until(lambda: not router.state.workers.pairs())
    assert value("plait_router_worker_ready", side="decode", worker=router.decode.url) == 0
    assert value("plait_router_pairs_ready") == 0


def test_requests_are_counted_by_outcome() -> None:
    metrics = RouterMetrics()
    metrics.request(route="/generate", outcome="ok", seconds=1.5, first_byte=0.5)
    metrics.request(route="/generate", outcome="client_gone", seconds=0.5, first_byte=None)
    get = metrics.registry.get_sample_value
    assert get("plait_router_requests_total", {"route": "/generate", "outcome": "ok"}) == 1
    assert get("plait_router_request_seconds_sum", {"route": "/generate"}) == 2
    assert get("plait_router_first_byte_seconds_count", {"route": "/generate"}) == 1


def test_two_routers_do_not_share_counters() -> None:
    one, other = RouterMetrics(), RouterMetrics()
    one.in_flight.inc()
    assert other.registry.get_sample_value("plait_router_in_flight") == 0


def test_imbalance_needs_a_forward() -> None:
    rank = RankStatus(rank=0, pid=1, updated_at=0)
    assert imbalance(rank) is None
    rank.split = SplitCounts(max_tokens=6, mean_tokens=4.0)
    assert imbalance(rank) == 1.5
