"""Through the router: the official client, figures, and legs that end together with their pages freed."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx
import openai
import pytest
from harness.ask import ask_pair, prompt

pytestmark = pytest.mark.stack


@pytest.fixture
def client(cp2) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{cp2.stack.router}/v1", api_key="none", max_retries=0, timeout=120)


MESSAGES: list[Any] = [{"role": "user", "content": "Where does a shared cache keep its pages?"}]


def test_chat_streamed_equals_whole(client) -> None:
    whole = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=12, temperature=0, extra_body={"ignore_eos": True}
    )
    stream = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12


def test_completion_equals_the_pair(cp2, client) -> None:
    """The router adds nothing and takes nothing away: the same tokens as both legs by hand."""
    ids = prompt(300, 9000)
    direct = ask_pair(cp2.shared, cp2.decode, [ids], new=8)[0]
    told = client.completions.create(
        model="tiny", prompt=ids, max_tokens=8, temperature=0, logprobs=5, extra_body={"ignore_eos": True}
    )
    assert told.choices[0].logprobs is not None
    values = told.choices[0].logprobs.token_logprobs
    assert values is not None
    assert [round(v, 4) for v in values] == [round(top[0][1], 4) for top in direct.decode.top]


def test_models(client) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_figures(cp2) -> None:
    """Pages per rank, both capacities, gather and transfer figures per rank and pair."""
    ask_pair(cp2.shared, cp2.decode, [prompt(700, 9100)])
    time.sleep(0.5)
    cache = cp2.stack.api("/api/v1/cache")
    [prefill] = [worker for worker in cache["workers"] if worker["side"] == "prefill"]
    # In the bytes of 64 + 1 pages per rank the replicated layout holds 63: N of its pages are reserved.
    assert prefill["capacity"]["tokens"] == 8192
    assert prefill["capacity"]["tokens_replicated"] == (64 + 1 - 2) * 64 // 128 * 128
    for rank in prefill["ranks"]:
        assert rank["pages"]["owned"] == rank["pages"]["free"] + rank["pages"]["used"] == 64
        assert rank["gather"]["bytes"] > 0
        assert rank["gather"]["seconds"] > 0
        assert set(rank["prefetch"]) == {"hit", "late", "fallback"}
    transfers = json.dumps(cp2.stack.api("/api/v1/transfers"))
    for word in ("pages", "bytes", "seconds", "failures", "pairs"):
        assert word in transfers
    groups = cp2.stack.api("/api/v1/groups")
    assert json.dumps(groups).count("shared") >= 1
    assert "plait_" in httpx.get(f"{cp2.stack.router}/metrics", timeout=10).text


def test_client_that_leaves_frees_pages(cp2) -> None:
    """Gone before the first token: both legs are aborted and the pages are free within 2 s."""
    body = {"model": "tiny", "prompt": prompt(3900, 9200), "max_tokens": 64, "stream": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{cp2.stack.router}/v1/completions", json=body, timeout=httpx.Timeout(10, read=1.0))
    cp2.stack.freed(within_s=4)  # one chunk may be in the middle of its forward
    for rank in cp2.shared.account():
        assert rank["faults"] == []


def test_prefill_leg_alone_is_aborted(cp2) -> None:
    """A room that decode never asks for: the prefill leg waits, is aborted by its rid, and holds nothing."""
    body = {
        "input_ids": prompt(300, 9300),
        "rid": "lonely",
        "sampling_params": {"max_new_tokens": 1},
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": cp2.shared.bootstrap_port,
        "bootstrap_room": 12345,
    }
    ended: list[Any] = []

    def leg() -> None:
        ended.append(httpx.post(f"{cp2.shared.url}/generate", json=body, timeout=60).status_code)

    thread = threading.Thread(target=leg)
    thread.start()
    time.sleep(1.0)
    httpx.post(f"{cp2.shared.url}/abort_request", json={"rid": "lonely"}, timeout=10)
    thread.join(timeout=10)
    assert not thread.is_alive()
    cp2.stack.freed(within_s=2)


def test_room_that_does_not_fit_fails_cleanly(cp2) -> None:
    """Decode announced fewer pages than prefill has (another prompt in the same room): both legs get an
    error at once, nothing is truncated, and the engines go on."""
    room = 77_001
    legs: dict[str, httpx.Response] = {}

    def leg(name: str, url: str, ids: list[int]) -> None:
        body = {
            "input_ids": ids,
            "rid": f"unfit-{name}",
            "sampling_params": {"max_new_tokens": 4, "temperature": 0},
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": cp2.shared.bootstrap_port,
            "bootstrap_room": room,
        }
        legs[name] = httpx.post(f"{url}/generate", json=body, timeout=60)

    threads = [
        threading.Thread(target=leg, args=("prefill", cp2.shared.url, prompt(500, 1))),
        threading.Thread(target=leg, args=("decode", cp2.decode.url, prompt(100, 1))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive(), "a leg hangs"
    assert legs["prefill"].status_code >= 400
    assert legs["decode"].status_code >= 400
    assert "do not fit" in legs["prefill"].text
    cp2.stack.freed(within_s=2)
    assert len(ask_pair(cp2.shared, cp2.decode, [prompt(100, 2)], new=2)[0].decode.ids) == 2


def test_decode_leg_that_fails_ends_prefill_at_once(cp2) -> None:
    """Decode gives the request up while prefill is between chunks: the client hears of it at once, prefill is
    aborted by the router, and its pages are free within 2 s."""
    answers: list[httpx.Response] = []
    body = {"model": "tiny", "prompt": prompt(3900, 9400), "max_tokens": 8}

    def ask() -> None:
        answers.append(httpx.post(f"{cp2.stack.router}/v1/completions", json=body, timeout=60))

    thread = threading.Thread(target=ask)
    thread.start()
    deadline = time.time() + 20
    while not any(rank["running"] for rank in cp2.shared.ranks()):
        assert time.time() < deadline, "prefill did not begin"
    assert httpx.post(f"{cp2.decode.url}/abort_request", json={"abort_all": True}, timeout=10).is_success
    thread.join(timeout=3)
    assert not thread.is_alive(), "the client waits for a leg that has failed"
    assert answers[0].status_code >= 400
    assert answers[0].json()["error"]["message"]
    cp2.stack.freed(within_s=2)
    for rank in cp2.shared.account():
        assert rank["faults"] == []
