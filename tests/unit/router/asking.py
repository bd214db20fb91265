"""Requests that tests of a running router send, and how its answers are read."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.router.conftest import RunningRouter
from tests.unit.router.stub_engine import Seen, StubEngine

from plait.telemetry import metrics as names
from plait.telemetry.metrics import Metric

CHAT_PATH = "/v1/chat/completions"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
STREAMED = CHAT | {"stream": True}
GENERATE = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}
# Rotation stays as it is while a test runs: what is tested is what requests notice by themselves.
NO_POLLS = {"poll_interval": 60.0}
ERROR_EVENT = b'data: {"error": {"message": "out of memory", "type": "x", "param": null, "code": 500}}\n\n'
# From a leg's failure to the other engine's abort message.
ABORT_WITHIN = 0.2


def error_of(body: bytes) -> dict[str, Any]:
    """The OpenAI error; fails where the form is another one."""
    payload = json.loads(body)
    assert set(payload) == {"error"}
    assert set(payload["error"]) == {"message", "type", "code", "param"}
    assert payload["error"]["message"]
    return dict(payload["error"])


def stream_error(body: bytes) -> dict[str, Any]:
    """The error that ends a broken stream: its last event, no [DONE]."""
    assert b"[DONE]" not in body
    assert body.endswith(b"\n\n")
    return error_of(body.rstrip(b"\n").rsplit(b"\n\n", 1)[-1].removeprefix(b"data: "))


def rids(seen: Seen) -> list[str]:
    """Request ids of one engine request."""
    rid = seen.body["rid"]
    return rid if isinstance(rid, list) else [rid]


def rooms(*engines: StubEngine) -> list[int]:
    """Bootstrap rooms of all that these engines got."""
    found = []
    for prompt in (p for e in engines for p in e.prompts):
        room = prompt["bootstrap_room"]
        found += room if isinstance(room, list) else [room]
    return found


def count(router: RunningRouter, metric: Metric, *labels: str) -> float:
    """What the router has counted of `metric` with these label values."""
    assert len(labels) == len(metric.labels)
    found = [
        n for name, given, n in router.state.metrics.tallies.rows() if (name, given) == (metric.name, labels)
    ]
    return found[0][0] if found else 0.0


def outcomes(router: RunningRouter, outcome: str, path: str = CHAT_PATH) -> float:
    """Requests that ended so."""
    return count(router, names.REQUESTS, path, outcome)


def failures(router: RunningRouter, engine: StubEngine, kind: str) -> float:
    """Failed legs that the metrics count against `engine`."""
    return count(router, names.LEG_FAILURES, engine.role, engine.url, kind)


async def assert_ended(router: RunningRouter, *told: StubEngine, by: float) -> None:
    """Nothing is left; these engines, and no others, were told to abort within ABORT_WITHIN after `by`.

    One that has answered in full, or said no, has nothing to abort.
    """
    await router.until_idle()
    for engine in told:
        await router.until(lambda e=engine: bool(e.aborts))  # type: ignore[misc]
        assert engine.aborts[0][0] in rids(engine.seen[0])
        assert engine.aborts[0][1] - by < router.within(ABORT_WITHIN)
    assert not [e.role for e in router.engines if e not in told and e.aborts]
