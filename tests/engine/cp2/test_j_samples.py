"""Several samples and several prompts in one request: each in a room of its own, and all in the answer."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from harness.ask import prompt
from harness.leaving import Client, held, seconds_to_free

pytestmark = pytest.mark.stack

NEW = 12
EXTRA = {"ignore_eos": True}
MESSAGES: list[Any] = [{"role": "user", "content": "Say three different things."}]


@pytest.fixture
def client(own) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{own.url}/v1", api_key="none", max_retries=0, timeout=120)


class Rooms:
    """The rooms that both engines have used since this was made (PLAIT_DEBUG_CHECKS)."""

    def __init__(self, cp2) -> None:
        self._folders = {"prefill": cp2.shared.state, "decode": cp2.decode.state}
        self._before = {side: self._all(side) for side in self._folders}

    def _all(self, side: str) -> set[int]:
        files = self._folders[side].glob(f"pages-{side}-0-*.json")
        return {int(file.stem.rpartition("-")[2]) for file in files}

    def used(self) -> set[int]:
        """The same on both sides."""
        new = {side: self._all(side) - self._before[side] for side in self._folders}
        assert new["prefill"] == new["decode"]
        return new["decode"]


def ask(
    client: openai.OpenAI, kind: str, *, stream: bool, n: int
) -> tuple[list[str], openai.types.Completion]:
    """The samples' texts in the order of their index, and the usage."""
    fields: dict[str, Any] = {"model": "tiny", "max_tokens": NEW, "n": n, "temperature": 1.0}
    fields["extra_body"] = EXTRA
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    if kind == "chat":
        told = client.chat.completions.create(messages=MESSAGES, **fields)
    else:
        told = client.completions.create(prompt=prompt(100, 9600 + stream), **fields)
    parts: dict[int, str] = {}
    ended: dict[int, str] = {}
    usage = None
    for piece in told if stream else [told]:
        usage = piece.usage or usage
        for choice in piece.choices:
            said = choice.text if kind == "text" else (choice.delta if stream else choice.message).content
            parts[choice.index] = parts.get(choice.index, "") + (said or "")
            if choice.finish_reason:
                assert choice.index not in ended, "it ended twice"
                ended[choice.index] = choice.finish_reason
    assert ended == dict.fromkeys(range(n), "length")
    return [parts[index] for index in range(n)], usage


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["chat", "text"])
def test_three_samples(cp2, client, kind, stream) -> None:
    """At a temperature they differ, so they were not one sample told three times."""
    rooms = Rooms(cp2)
    texts, usage = ask(client, kind, stream=stream, n=3)
    assert len(rooms.used()) == 3
    assert len(set(texts)) == 3
    _, one = ask(client, kind, stream=stream, n=1)
    assert usage.completion_tokens == 3 * NEW
    assert usage.prompt_tokens == one.prompt_tokens > 0
    cp2.stack.freed(within_s=2)


def test_three_prompts(cp2, client) -> None:
    """Each choice goes on from its own prompt: greedily, as the prompt alone does."""
    prompts = [prompt(tokens, 9610 + tokens) for tokens in (40, 80, 300)]
    fields: dict[str, Any] = {"model": "tiny", "temperature": 0, "extra_body": EXTRA}
    alone = [client.completions.create(prompt=ids, max_tokens=1, **fields).choices[0].text for ids in prompts]
    assert len(set(alone)) == 3, "the prompts do not tell their choices apart"
    cp2.fresh()
    rooms = Rooms(cp2)
    told = client.completions.create(prompt=prompts, max_tokens=1, **fields)
    assert len(rooms.used()) == 3
    assert [choice.index for choice in told.choices] == [0, 1, 2]
    assert [choice.text for choice in told.choices] == alone
    assert told.usage.prompt_tokens == 420
    assert told.usage.completion_tokens == 3
    cp2.stack.freed(within_s=2)


def test_two_samples_of_each_prompt(cp2, client) -> None:
    """Six rooms; the choices of a prompt stand together, as OpenAI has them."""
    prompts = [prompt(tokens, 9620 + tokens) for tokens in (40, 80, 300)]
    fields: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 1, "extra_body": EXTRA}
    alone = [client.completions.create(prompt=ids, **fields).choices[0].text for ids in prompts]
    assert len(set(alone)) == 3, "the prompts do not tell their choices apart"
    rooms = Rooms(cp2)
    told = client.completions.create(prompt=prompts, n=2, **fields)
    assert len(rooms.used()) == 6
    assert [choice.index for choice in told.choices] == list(range(6))
    assert [choice.text for choice in told.choices] == [text for text in alone for _ in range(2)]
    cp2.stack.freed(within_s=2)


def test_client_of_several_samples_leaves(cp2, own) -> None:
    """All samples are aborted, not only the one whose event came last."""
    body: dict[str, Any] = {"model": "tiny", "prompt": prompt(100, 9630), "max_tokens": 3000, "n": 3}
    client = Client(own.url, "/v1/completions", {**body, **EXTRA, "stream": True})
    client.events(6)
    [still] = held(cp2.decode)
    assert "3 running" in still
    client.leave()
    seconds_to_free(cp2.shared, cp2.decode, within_s=2)
