"""Events: the same one counted, and no flood."""

from __future__ import annotations

import pytest

from plait_operator.actions import Event
from plait_operator.apply.client import Request
from plait_operator.apply.events import Recorder
from plait_operator.apply.writes import Target

TARGET = Target("ns", "demo", "uid-1")
NOW = "2026-01-01T00:00:00.000000Z"
EVENT = Event("Warning", "Stuck", "no room")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder("operator-1")


def sent(recorder: Recorder, clock: float, event: Event = EVENT, target: Target = TARGET) -> Request | None:
    return recorder.request(event, target, clock=clock, now=NOW)


def test_a_first_event_is_written_whole(recorder: Recorder) -> None:
    request = sent(recorder, 0)
    assert request is not None
    assert (request.method, request.path) == ("POST", "/apis/events.k8s.io/v1/namespaces/ns/events")
    assert isinstance(request.body, dict)
    assert (request.body["type"], request.body["reason"], request.body["note"]) == EVENT
    assert request.body["regarding"]["uid"] == "uid-1"


def test_the_same_event_is_counted_and_seldom_written(recorder: Recorder) -> None:
    sent(recorder, 0)
    assert [sent(recorder, t) for t in (1, 2, 59)] == [None] * 3
    request = sent(recorder, 61)
    assert request is not None
    assert request.method == "PATCH"
    assert isinstance(request.body, dict)
    assert request.body["series"]["count"] == 5


def test_much_later_it_is_a_new_event_with_a_new_name(recorder: Recorder) -> None:
    first, later = sent(recorder, 0), sent(recorder, 700)
    assert first is not None
    assert later is not None
    assert later.method == "POST"
    assert isinstance(first.body, dict)
    assert isinstance(later.body, dict)
    assert first.body["metadata"]["name"] != later.body["metadata"]["name"]


def test_another_deployment_has_its_own(recorder: Recorder) -> None:
    sent(recorder, 0)
    again = sent(recorder, 1, target=Target("ns", "demo", "uid-2"))
    assert again is not None
    assert again.method == "POST"


def test_a_flood_of_different_events_is_cut_off(recorder: Recorder) -> None:
    passed = [sent(recorder, 0, Event("Normal", "R", str(n))) for n in range(100)]
    assert sum(r is not None for r in passed) == 25
    assert sent(recorder, 13, Event("Normal", "R", "one more")) is not None


def test_long_notes_fit_into_the_bytes_allowed(recorder: Recorder) -> None:
    request = sent(recorder, 0, Event("Normal", "R", "ü" * 2000))
    assert request is not None
    assert isinstance(request.body, dict)
    assert len(request.body["note"].encode()) <= 1024


def test_names_of_long_deployments_are_legal(recorder: Recorder) -> None:
    request = sent(recorder, 0, target=Target("ns", "d" * 253, "uid-1"))
    assert request is not None
    assert isinstance(request.body, dict)
    assert len(request.body["metadata"]["name"]) <= 253
