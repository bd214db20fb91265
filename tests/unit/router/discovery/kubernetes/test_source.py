"""The Kubernetes source before an API server that has the faults of real ones: the list follows the pods."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable

import pytest
from tests.unit.router.discovery.kubernetes.conftest import Followed, until
from tests.unit.router.discovery.kubernetes.fake_apiserver import FakeApiServer, pod

Follow = Callable[..., Followed]


async def test_the_list_follows_the_pods(server: FakeApiServer, follow: Follow) -> None:
    server.put(pod("p0", "prefill", ip="10.0.0.1"))
    server.put(pod("d0", ip="10.0.0.2"))
    it = follow()
    await it.until("1", "2")
    assert it.source.synced
    server.put(pod("d1", ip="10.0.0.3", ready=False))
    await until(lambda: "d1" in it.source.skipped)
    assert it.hosts == ["1", "2"], "NotReady is never routed"
    server.put(pod("d1", ip="10.0.0.3"))
    await it.until("1", "2", "3")
    server.put(pod("d0", ip="10.0.0.2", ready=False))
    await it.until("1", "3")
    going = pod("p0", "prefill", ip="10.0.0.1")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:10:00Z"
    server.put(going)
    await until(lambda: it.taken[-1][0].draining)
    server.delete("p0")
    await it.until("3")
    assert (server.lists, len(server.watches)) == (1, 1), "one list and one watch told all of it"
    assert (it.source.problem, it.source.counts["errors"]) == ("", 0)


async def test_an_engine_that_restarted_is_another_worker(server: FakeApiServer, follow: Follow) -> None:
    server.put(pod("d0"))
    it = follow()
    await it.until("1")
    server.put(pod("d0", restarts=1))
    await until(lambda: len(it.taken) == 2)
    server.put(pod("d0", uid="another"))
    await until(lambda: len(it.taken) == 3)
    assert len({targets[0].key for targets in it.taken}) == 3
    assert len({targets[0].url for targets in it.taken}) == 1


async def test_changes_that_say_nothing_new_are_not_handed_over(
    server: FakeApiServer, follow: Follow
) -> None:
    server.put(pod("d0"))
    it = follow()
    await it.until("1")
    for number in range(3):
        server.put(pod("d0", labels={"beat": str(number)}))
    await until(lambda: it.source.counts["events"] == 3)
    assert len(it.taken) == 1


@pytest.mark.parametrize("by_status", [True, False])
async def test_a_version_that_is_gone_is_followed_by_a_list(
    server: FakeApiServer, follow: Follow, by_status: bool
) -> None:
    server.gone_by_status = by_status
    server.put(pod("d0", ip="10.0.0.1"))
    it = follow()
    await it.until("1")
    await until(lambda: server.watching == 1)
    server.cut()
    server.put(pod("d1", ip="10.0.0.2"))
    server.delete("d0")
    server.compact()
    await it.until("2")
    assert it.source.counts["gone"] == 1
    assert it.source.counts["lost_deletes"] == 0, "nobody said that the watch had followed this"
    assert server.lists == 2
    assert it.source.problem == "", "a 410 happens in good health"
    assert () not in it.taken


async def test_after_an_outage_a_version_that_is_gone_is_followed_by_a_list_at_once(
    server: FakeApiServer, follow: Follow
) -> None:
    server.put(pod("d0", ip="10.0.0.1"))
    it = follow()
    await it.until("1")
    await until(lambda: server.watching == 1)
    await server.stop()
    await until(lambda: it.source.counts["errors"] == 4)  # the next pause would be 1.6 s at least
    server.put(pod("d1", ip="10.0.0.2"))
    server.delete("d0")
    server.compact()
    await server.start()
    await until(lambda: it.source.counts["gone"] == 1)
    assert await it.until("2") < 1.2


async def test_a_lost_delete_is_healed_by_the_next_list(
    server: FakeApiServer, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.put(pod("d0", ip="10.0.0.1"))
    server.put(pod("d1", ip="10.0.0.2"))
    it = follow(resync=0.5)
    await it.until("1", "2")
    await until(lambda: server.watching == 1)
    server.delete("d1", tell=False)
    await it.until("1")
    assert it.source.counts["lost_deletes"] == 1
    assert "1 pods were gone that the watch had not told of" in caplog.text
    assert it.source.problem == ""


async def test_a_watch_that_is_cut_goes_on_where_it_was(server: FakeApiServer, follow: Follow) -> None:
    server.put(pod("d0", ip="10.0.0.1"))
    it = follow()
    await it.until("1")
    server.put(pod("d1", ip="10.0.0.2"))
    await it.until("1", "2")
    server.cut()
    server.delete("d0")
    await it.until("2")
    assert server.lists == 1
    assert [w["resourceVersion"] for w in server.watches] == ["101", "102"]
    assert it.source.problem == ""


async def test_a_silent_watch_is_noticed(server: FakeApiServer, follow: Follow) -> None:
    server.put(pod("d0", ip="10.0.0.1"))
    server.stall = True
    it = follow(watch=0.5, margin=0.3)
    await it.until("1")
    await until(lambda: server.watching == 1)
    server.put(pod("d1", ip="10.0.0.2"))
    server.stall = False
    waited = await it.until("1", "2")
    assert waited > 0.5, "the first watch was silent, so it took the second"
    assert it.source.counts["silent_watches"] == 1
    assert server.lists == 1


async def test_a_bookmark_moves_on_where_the_next_watch_begins(server: FakeApiServer, follow: Follow) -> None:
    server.put(pod("d0"))
    it = follow(watch=0.5)
    await it.until("1")
    await until(lambda: server.watching == 1)
    server.put(pod("other", "router"))
    server.bookmark()
    await until(lambda: len(server.watches) == 2)
    assert [w["resourceVersion"] for w in server.watches] == ["101", "103"]
    assert it.source.counts["errors"] == 0, "the end of a watch in time is none"


async def test_without_the_api_server_the_list_stays_and_trouble_is_told_once(
    server: FakeApiServer, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.put(pod("d0"))
    it = follow()
    await it.until("1")
    await server.stop()
    await until(lambda: it.source.counts["errors"] >= 3)
    assert it.hosts == ["1"]
    assert it.source.synced
    assert f"pods at {server.url}" in it.source.problem
    server.put(pod("d1", ip="10.0.0.2"))
    await server.start()
    await it.until("1", "2")
    await until(lambda: not it.source.problem)
    assert it.source.age is not None
    assert it.source.age < 5
    told = [r.getMessage() for r in caplog.records if "pods at" in r.getMessage()]
    assert len(told) == 1
    assert "the workers known so far stay" in told[0]
    assert caplog.text.count("is well again") == 1


async def test_before_the_first_list_nothing_is_handed_over(server: FakeApiServer, follow: Follow) -> None:
    server.refuse["list"] = (503, "etcd is down")
    it = follow()
    await until(lambda: "etcd is down" in it.source.problem)
    assert not it.taken
    assert not it.source.synced
    server.refuse.clear()
    await until(lambda: it.source.synced)
    assert it.taken == [()], "no pod at all is a list too"


async def test_a_list_that_fails_does_not_stop_the_watch(server: FakeApiServer, follow: Follow) -> None:
    """A resync that gets no answer must not be asked again and again while changes wait to be told."""
    server.put(pod("d0", ip="10.0.0.1"))
    it = follow(resync=0.6, timeout=0.3)
    await it.until("1")
    server.stall_lists = True
    await until(lambda: it.source.counts["errors"] >= 1)
    server.put(pod("d1", ip="10.0.0.2"))
    await it.until("1", "2")
    assert it.source.counts["lists"] == 1


async def test_a_token_that_ended_is_read_again(
    server: FakeApiServer, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    server.tokens = {"first"}
    server.put(pod("d0", ip="10.0.0.1"))
    it = follow()
    await it.until("1")
    server.tokens = {"second"}
    server.cut()
    await until(lambda: "does not accept the token" in it.source.problem)
    assert it.hosts == ["1"]
    it.token.write_text("second")
    server.put(pod("d1", ip="10.0.0.2"))
    await it.until("1", "2")
    await until(lambda: not it.source.problem)
    assert "first" not in caplog.text
    assert "second" not in caplog.text


async def test_after_an_error_no_connection_is_used_again(server: FakeApiServer, follow: Follow) -> None:
    """It may lead to an API server that is no more, and was opened with a CA that may have been renewed."""
    server.refuse["list"] = (500, "etcd is down")
    it = follow()
    await until(lambda: server.lists >= 2)
    server.refuse.clear()
    await until(lambda: server.watching == 1)
    assert it.source.synced
    first, second, *_, listed, watched = server.peers
    assert first != second
    assert listed == watched, "in good health one connection serves for all"


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_missing_rights_are_named(server: FakeApiServer, follow: Follow, verb: str) -> None:
    server.refuse[verb] = (403, 'pods is forbidden: User "x" cannot')
    it = follow()
    await until(lambda: bool(it.source.problem))
    assert f"may not {verb} pods in namespace pool" in it.source.problem
    assert "get, list and watch" in it.source.problem
    server.refuse.clear()
    await until(lambda: not it.source.problem)


async def test_a_server_that_asks_for_quiet_gets_it(server: FakeApiServer, follow: Follow) -> None:
    server.refuse["list"] = (429, "too many requests")
    server.headers = {"retry-after": "1"}
    it = follow()
    await until(lambda: bool(it.source.problem))
    start = time.monotonic()
    await until(lambda: server.lists >= 2)
    assert time.monotonic() - start > 0.8, "without it the next attempt comes within 0.2 s"


@pytest.mark.parametrize("fault", ["end_at_once", "gone"])
async def test_a_server_that_ends_each_watch_is_not_pestered(
    server: FakeApiServer, follow: Follow, fault: str
) -> None:
    if fault == "gone":
        server.refuse["watch"] = (410, "too old")
    server.end_at_once = True
    server.put(pod("d0"))
    it = follow()
    await it.until("1")
    assert await until(lambda: len(server.watches) >= 4) > 0.5, "pauses of 0.1, 0.2 and 0.4 s at least"
    assert it.source.problem
    server.end_at_once = False
    server.refuse.clear()
    await until(lambda: not it.source.problem)


async def test_a_pod_without_its_port_is_told_once(
    server: FakeApiServer, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    broken = pod("d0")
    broken["spec"]["containers"][0]["ports"] = [{"containerPort": 1}]
    server.put(broken)
    server.put(pod("d1", ip="10.0.0.2", ready=False))
    it = follow()
    await until(lambda: it.source.synced)
    server.put(pod("d1", ip="10.0.0.2"))
    await it.until("2")
    assert it.source.skipped == {"d0": "no container port of it is named http"}
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert told == ["pods of namespace pool: pod d0 is no worker: no container port of it is named http"]


async def test_a_fault_of_our_own_does_not_end_discovery(
    server: FakeApiServer, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    server.put(pod("d0", ip="10.0.0.1"))
    it = follow()
    await it.until("1")
    it.break_take = True
    server.put(pod("d1", ip="10.0.0.2"))
    await until(lambda: "fault of the router" in it.source.problem)
    assert "could not take this list" in caplog.text, "with its traceback"
    it.break_take = False
    await it.until("1", "2")
    await until(lambda: not it.source.problem)


async def test_hundreds_of_pods_are_one_list(server: FakeApiServer, follow: Follow) -> None:
    for number in range(250):
        server.put(pod(f"d{number:03}", ip=f"10.0.{number // 200}.{number % 200}"))
    it = follow()
    await until(lambda: bool(it.taken))
    assert len(it.taken[0]) == 250
    assert server.lists == 3


async def test_its_end_leaves_nothing_behind(
    server: FakeApiServer, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    it = follow()
    await until(lambda: server.watching == 1)
    await it.end()
    assert it.task.cancelled()
    await until(lambda: server.watching == 0)
    names = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
    assert not {name for name in names if "Source" in name or "PodsApi" in name}
    gc.collect()  # aiohttp tells of a session that was left open when it is collected
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
