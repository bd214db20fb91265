"""One leg fails or is refused: the client hears of it at once, and the other leg ends with it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from harness import engines
from harness.ask import prompt
from harness.held import Held
from harness.leaving import Client, held, seconds_to_free, until

pytestmark = pytest.mark.stack

AT_ONCE_S = 2.0
"""Not the time of an engine's work, nor any deadline: what a busy machine may add."""


def abort_all(engine) -> None:
    """The engine gives up all that it has."""
    httpx.post(f"{engine.url}/abort_request", json={"abort_all": True}, timeout=10).raise_for_status()


@contextmanager
def silent(pid: int) -> Iterator[None]:
    """The process does nothing in this block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("stream", [False, True])
def test_prefills_400_is_given_at_once_as_it_is(cp2, own, stream) -> None:
    """A prompt over the context, while decode says nothing: prefill's own answer, to the byte."""
    body: dict[str, Any] = {"model": "tiny", "prompt": prompt(engines.CONTEXT + 100, 1), "max_tokens": 4}
    body["stream"] = stream
    own_words = httpx.post(f"{cp2.shared.url}/v1/completions", json=body, timeout=30)
    with silent(cp2.stack.told["decode"][0]["pid"]):
        began = time.monotonic()
        answer = httpx.post(f"{own.url}/v1/completions", json=body, timeout=30)
        took = time.monotonic() - began
    assert answer.status_code == own_words.status_code == 400
    assert answer.content == own_words.content
    assert answer.headers["content-type"] == own_words.headers["content-type"]
    assert str(engines.CONTEXT) in answer.text
    assert took < AT_ONCE_S
    until(lambda: own.worker(cp2.decode.url)["ready"], within_s=10, what="decode does not come back")
    seconds_to_free(cp2.shared, cp2.decode, within_s=2)


@pytest.mark.parametrize("stream", [False, True])
def test_prefill_leg_that_fails_ends_decodes(cp2, own, stream) -> None:
    """Prefill gives up what it has not begun: decode, which has pages for it, is told."""
    body = {"model": "tiny", "prompt": prompt(700, 9700 + stream), "max_tokens": 100, "stream": stream}
    answers: list[httpx.Response] = []

    def post() -> None:
        answers.append(httpx.post(f"{own.url}/v1/completions", json=body, timeout=60))

    thread = threading.Thread(target=post)
    with Held(cp2.shared) as engine:
        thread.start()
        engine.wait_for(1, within_s=30)
        assert held(cp2.decode)
        abort_all(cp2.shared)
        thread.join(timeout=AT_ONCE_S)
        assert not thread.is_alive(), "the client waits for a leg that has failed"
        seconds_to_free(cp2.shared, cp2.decode, within_s=2)
    assert answers[0].status_code >= 500
    assert answers[0].json()["error"]["message"]


def test_decode_that_gives_up_in_the_middle_of_a_stream(cp2, own) -> None:
    """The official client raises, and does not take half an answer for a whole one."""
    client = openai.OpenAI(base_url=f"{own.url}/v1", api_key="none", max_retries=0, timeout=60)
    stream = client.completions.create(
        model="tiny", prompt=prompt(100, 9710), max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
    )
    for _, _piece in zip(range(3), stream, strict=False):
        pass
    abort_all(cp2.decode)
    with pytest.raises(openai.APIError):
        for _piece in stream:
            pass
    seconds_to_free(cp2.shared, cp2.decode, within_s=2)


def test_drained_decode_finishes_its_stream(cp2, own) -> None:
    """By the admin API: nothing new goes there, and what runs there ends well."""
    body: dict[str, Any] = {"model": "tiny", "prompt": prompt(100, 9720), "max_tokens": 100}
    body |= {"temperature": 0, "ignore_eos": True, "stream": True}
    client = Client(own.url, "/v1/completions", body)
    events = client.events(5)
    own.order("drain", cp2.decode.url)
    try:
        told = own.worker(cp2.decode.url)
        assert (told["draining"], told["in_flight"]) == (True, 1)
        refused = httpx.post(f"{own.url}/v1/completions", json={**body, "stream": False}, timeout=30)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "no_pair"
        while events[-1] != b"[DONE]":
            events += client.events(1)
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
        assert len(events) >= 100
        assert own.worker(cp2.decode.url)["in_flight"] == 0
    finally:
        own.order("undrain", cp2.decode.url)
    again = {**body, "stream": False, "max_tokens": 4}
    assert httpx.post(f"{own.url}/v1/completions", json=again, timeout=60).is_success
