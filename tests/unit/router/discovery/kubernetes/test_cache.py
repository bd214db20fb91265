"""The cache of pods: lists and events in, targets out."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.router.discovery.kubernetes.fake_apiserver import pod

from plait.router.discovery.kubernetes.cache import Cache, Event, EventKind, entry
from plait.router.discovery.kubernetes.rules import PodRules

RULES = PodRules()


def listed(*pods: dict[str, Any], version: str = "10") -> Cache:
    cache = Cache(RULES)
    cache.replace([entry(p, RULES) for p in pods], version)
    return cache


def urls(cache: Cache) -> list[str]:
    return [t.url.removeprefix("http://10.0.0.").removesuffix(":30000") for t in cache.targets()]


def event(kind: EventKind, thing: dict[str, Any], version: str = "11") -> Event:
    return Event(kind, thing, version)


def test_a_list_gives_prefill_first_by_address() -> None:
    cache = listed(
        pod("d1", ip="10.0.0.3"), pod("d0", ip="10.0.0.2"), pod("p0", "prefill", ip="10.0.0.9"), version="7"
    )
    assert urls(cache) == ["9", "2", "3"]
    assert cache.version == "7"


def test_events_change_it() -> None:
    cache = listed(pod("a", ip="10.0.0.1"))
    cache.apply(event(EventKind.ADDED, pod("b", ip="10.0.0.2"), "11"))
    assert (urls(cache), cache.version) == (["1", "2"], "11")
    cache.apply(event(EventKind.MODIFIED, pod("a", ip="10.0.0.1", ready=False), "12"))
    assert (urls(cache), cache.version) == (["2"], "12")
    assert list(cache.skipped()) == ["a"]
    cache.apply(event(EventKind.DELETED, pod("a", ip="10.0.0.1", ready=False), "13"))
    assert not cache.skipped()
    cache.apply(event(EventKind.BOOKMARK, {"metadata": {}}, "20"))
    assert (urls(cache), cache.version) == (["2"], "20")


def test_an_old_pods_delete_does_not_remove_its_namesake() -> None:
    cache = listed(pod("a", uid="new"))
    cache.apply(event(EventKind.DELETED, pod("a", uid="old")))
    assert urls(cache) == ["1"]
    cache.apply(event(EventKind.DELETED, pod("a", uid="new")))
    assert urls(cache) == []


def test_a_list_replaces_everything_and_counts_what_had_been_missed() -> None:
    cache = listed(pod("a", ip="10.0.0.1"), pod("b", ip="10.0.0.2"), pod("c", ip="10.0.0.3"))
    fresh = [pod("b", ip="10.0.0.2"), pod("c", ip="10.0.0.4", uid="other"), pod("d", ip="10.0.0.5")]
    assert cache.replace([entry(p, RULES) for p in fresh], "30") == 2
    assert (urls(cache), cache.version) == (["2", "4", "5"], "30")
    assert cache.replace([], "31") == 3
    assert urls(cache) == []


def test_an_address_belongs_to_the_pod_that_started_last() -> None:
    old = pod("old", uid="z", created="2026-01-01T00:00:00Z")
    new = pod("new", uid="a", created="2026-01-01T00:05:00Z")
    new["metadata"]["deletionTimestamp"] = "2026-01-01T00:10:00Z"
    for order in ([old, new], [new, old]):
        cache = listed(*order)
        (target,) = cache.targets()
        assert (target.identity, target.draining) == ("a/0", True)
        assert "newer pod" in cache.skipped()["old"].reason


def test_an_address_that_changed_sides_stands_once() -> None:
    old = pod("old", "prefill", created="2026-01-01T00:00:00Z")
    new = pod("new", "decode", created="2026-01-01T00:05:00Z")
    assert [t.side for t in listed(old, new).targets()] == ["decode"]


def test_a_restart_in_place_is_another_target_at_the_same_address() -> None:
    cache = listed(pod("a"))
    (before,) = cache.targets()
    cache.apply(event(EventKind.MODIFIED, pod("a", restarts=1)))
    (after,) = cache.targets()
    assert after.url == before.url
    assert after.key != before.key


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=20))
def test_events_lead_to_what_a_list_of_the_same_pods_says(steps: list[tuple[str, bool, bool]]) -> None:
    cache, now = listed(), dict[str, dict[str, Any]]()
    for name, there, ready in steps:
        made = pod(name, ip=f"10.0.0.{ord(name)}", ready=ready)
        if there:
            kind = EventKind.MODIFIED if name in now else EventKind.ADDED
            now[name] = made
            cache.apply(event(kind, made))
        elif name in now:
            cache.apply(event(EventKind.DELETED, now.pop(name)))
    fresh = listed(*now.values())
    assert cache.targets() == fresh.targets()
    assert cache.skipped() == fresh.skipped()
