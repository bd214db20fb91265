"""Last in this folder, because it ends the stack: a decode engine that is killed under its requests."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import openai
import psutil
import pytest
from harness.ask import prompt
from harness.leaving import Client

pytestmark = pytest.mark.stack

HEARD_S = 5.0
"""Seconds within which every client has to know: no deadline of the router is that short."""


class Killed(NamedTuple):
    """What was under way, and what became of it.

    `whole`: the answer (or error) of a request that prefill had; `raised`: what the official client made of
    its stream; `lines`: what was left of another stream; `heard_s`: seconds until each of them had ended.
    """

    whole: Any
    raised: Any
    lines: list[bytes]
    heard_s: dict[str, float]


@pytest.fixture(scope="module")
def killed(started, own) -> Killed:
    """Decode dies (SIGKILL) under two streams through a router of its own, which lives on, and a request
    through the stack's router that prefill is busy with."""
    stack = started.stack
    body: dict[str, Any] = {"model": "tiny", "prompt": prompt(100, 9800), "max_tokens": 3000}
    body |= {"temperature": 0, "stream": True, "ignore_eos": True}
    raw = Client(own.url, "/v1/completions", body)
    client = openai.OpenAI(base_url=f"{own.url}/v1", api_key="none", max_retries=0, timeout=60)
    chunks = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Go on until you die."}],
        max_tokens=3000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for _, _chunk in zip(range(3), chunks, strict=False):
        pass
    raw.events(3)

    def whole() -> httpx.Response:
        asked = {"model": "tiny", "prompt": prompt(3500, 1), "max_tokens": 32}
        return httpx.post(f"{stack.router}/v1/completions", json=asked, timeout=60)

    def official() -> None:
        for _chunk in chunks:
            pass

    def lines() -> list[bytes]:
        return raw.answer.read().splitlines()

    found: dict[str, Any] = {}
    ended: dict[str, float] = {}

    def run(work: Callable[[], Any]) -> None:
        try:
            found[work.__name__] = work()
        except Exception as error:
            found[work.__name__] = error
        ended[work.__name__] = time.monotonic()

    threads = [threading.Thread(target=run, args=(work,)) for work in (whole, official, lines)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    assert ended == {}, found
    os.kill(stack.told["decode"][0]["pid"], signal.SIGKILL)
    at = time.monotonic()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive(), "a client waits for a dead engine"
    heard = {name: when - at for name, when in ended.items()}
    return Killed(found["whole"], found["official"], found["lines"], heard)


def test_dead_decode_is_heard_of_at_once(killed, capsys) -> None:
    with capsys.disabled():
        print(f"\n  decode killed: {', '.join(f'{k} after {v:.2f} s' for k, v in killed.heard_s.items())}")
    assert max(killed.heard_s.values()) < HEARD_S


def test_request_without_an_answer_yet_gets_a_plain_error(killed) -> None:
    assert isinstance(killed.whole, httpx.Response), killed.whole
    assert killed.whole.status_code in (502, 503)
    assert killed.whole.json()["error"]["message"]


def test_stream_ends_with_an_error_event(killed) -> None:
    """Its last event, in a chunked body that is complete; no [DONE], which would call it whole."""
    assert isinstance(killed.lines, list), killed.lines
    events = [line[5:].strip() for line in killed.lines if line.startswith(b"data:")]
    assert json.loads(events[-1])["error"]["message"]
    assert b"[DONE]" not in events


def test_official_client_raises(killed) -> None:
    assert isinstance(killed.raised, openai.APIError), killed.raised
    assert killed.raised.message


def test_decode_is_blamed_alone(killed, own, started) -> None:
    assert own.metric("plait_router_leg_failures_total", worker=started.decode.url, kind="broken") == 2
    assert own.metric("plait_router_leg_failures_total", side="prefill", kind="broken") == 0


def test_stack_ends(killed, started) -> None:
    """`plait up` names the dead child, and nothing is left running."""
    stack = started.stack
    pids = [pid for side in ("prefill", "decode") for one in stack.told[side] for pid in one["pids"]]
    pids.append(stack.told["router"]["pid"])
    assert stack.process.wait(timeout=60) != 0
    assert "decode" in stack.log.read_text()
    time.sleep(0.5)
    left = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert left == []
    for port in (stack.told["router"]["port"], stack.told["prefill"][0]["port"]):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/", timeout=2)
