"""Last in this folder, because it ends the stack: a decode engine that dies under a request."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import httpx
import psutil
import pytest
from harness.ask import prompt

pytestmark = pytest.mark.stack


def test_dead_decode_ends_the_stack_and_answers_at_once(started) -> None:
    """The client gets an OpenAI-style error, `plait up` names the dead child, and nothing is left running."""
    stack = started.stack
    pids = [pid for side in ("prefill", "decode") for one in stack.told[side] for pid in one["pids"]]
    pids.append(stack.told["router"]["pid"])
    answers: list[Any] = []

    def ask() -> None:
        body = {"model": "tiny", "prompt": prompt(3500, 1), "max_tokens": 32}
        try:
            answers.append(httpx.post(f"{stack.router}/v1/completions", json=body, timeout=60))
        except httpx.HTTPError as error:
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(1.5)
    os.kill(stack.told["decode"][0]["pid"], signal.SIGKILL)
    thread.join(timeout=20)
    assert not thread.is_alive(), "the client waits for a dead engine"
    assert isinstance(answers[0], httpx.Response), answers
    assert answers[0].status_code in (502, 503)
    assert answers[0].json()["error"]["message"]
    assert stack.process.wait(timeout=60) != 0
    assert "decode" in stack.log.read_text()
    time.sleep(0.5)
    left = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert left == []
    for port in (stack.told["router"]["port"], stack.told["prefill"][0]["port"]):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/", timeout=2)
