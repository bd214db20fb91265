"""The official openai client, as an application uses it: every answer and every field comes through."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionToolParam
from tests.router.conformance import shapes
from tests.router.conformance.process import SECRET, Router

MESSAGES: Any = [{"role": "user", "content": f"Ein Gruß, {SECRET} 東京 🚅"}]
TEXT = "".join(shapes.WORDS)
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "wetter",
            "description": f"{SECRET}: the weather somewhere",
            "parameters": {"type": "object", "properties": {"ort": {"type": "string"}}},
        },
    }
]


def test_chat(client: openai.OpenAI, router: Router) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0.5, seed=7)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 4)
    # What SGLang adds to OpenAI's form is there too.
    assert answer.model_extra == {"metadata": {"weight_version": "default"}}
    for engine in router.engines:
        (seen,) = engine.prompts
        assert seen.path == "/v1/chat/completions"
        assert seen.body["messages"] == MESSAGES
        assert (seen.body["temperature"], seen.body["seed"]) == (0.5, 7)


def test_both_engines_get_one_room_and_request_id(client: openai.OpenAI, router: Router) -> None:
    for _ in range(3):
        client.chat.completions.create(model="tiny", messages=MESSAGES)
    pairs = [[e.prompts[i].body for e in router.engines] for i in range(3)]
    for first, second in pairs:
        assert first["bootstrap_room"] == second["bootstrap_room"] > 0
        assert first["rid"] == second["rid"]
        assert (first["bootstrap_host"], first["bootstrap_port"]) == ("127.0.0.1", 8998)
    assert len({p["bootstrap_room"] for p, _ in pairs}) == len({p["rid"] for p, _ in pairs}) == 3


def test_chat_streamed(client: openai.OpenAI) -> None:
    with client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].delta.content for c in chunks[1:-1]] == shapes.WORDS
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(c.usage is None for c in chunks)


def test_chat_streamed_with_usage(client: openai.OpenAI, router: Router) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (7, 4, 11)
    assert all(c.usage is None for c in chunks)
    assert all(e.prompts[0].body["stream_options"] == {"include_usage": True} for e in router.engines)


def test_stream_helper_of_the_client(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=MESSAGES) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
        final = stream.get_final_completion()
    assert text == final.choices[0].message.content == TEXT


def test_tools(client: openai.OpenAI, router: Router) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice="auto", parallel_tool_calls=False
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.id, call.function.name) == ("call_1", "wetter")
    assert json.loads(call.function.arguments) == {"ort": 2**70}
    assert answer.choices[0].finish_reason == "tool_calls"
    for engine in router.engines:
        sent = engine.prompts[0].body
        assert (sent["tools"], sent["tool_choice"], sent["parallel_tool_calls"]) == (TOOLS, "auto", False)


def test_tools_streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS, stream=True)
    chunks = list(stream)
    calls = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
    assert calls[0].id == "call_1"
    assert calls[0].function is not None
    assert calls[0].function.name == "wetter"
    arguments = "".join(c.function.arguments or "" for c in calls if c.function)
    assert json.loads(arguments) == {"ort": 2**70}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_tool_results_go_back(client: openai.OpenAI, router: Router) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "wetter", "arguments": '{"ort":"東京"}'}}
    messages: Any = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Regen"},
    ]
    client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
    assert all(e.prompts[0].body["messages"] == messages for e in router.engines)


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(client: openai.OpenAI, stream: bool) -> None:
    made = client.chat.completions.create(
        model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1, stream=stream
    )
    choices = [c.choices[0] for c in made] if isinstance(made, openai.Stream) else [made.choices[0]]
    tokens = [t for c in choices if c.logprobs for t in c.logprobs.content or []]
    assert [t.token for t in tokens] == shapes.WORDS
    assert all(t.logprob == t.top_logprobs[0].logprob == -0.25 for t in tokens)
    assert bytes(tokens[-1].bytes or []).decode() == " 🚅"


def test_response_format(client: openai.OpenAI, router: Router) -> None:
    wanted: Any = {
        "type": "json_schema",
        "json_schema": {"name": "größe", "schema": {"type": "object", "minimum": 2**70}, "strict": True},
    }
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, response_format=wanted)
    assert json.loads(answer.choices[0].message.content or "") == wanted
    assert all(e.prompts[0].body["response_format"] == wanted for e in router.engines)


def test_fields_that_nobody_knows(client: openai.OpenAI, router: Router) -> None:
    extra = {"top_k": 5, "future_field": {"deep": [2**70, None, "ü"]}, "regex": "\\d+"}
    client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body=extra)
    for engine in router.engines:
        sent = engine.prompts[0].body
        assert {name: sent[name] for name in extra} == extra


@pytest.mark.parametrize("stream", [False, True])
def test_chat_with_three_samples(client: openai.OpenAI, router: Router, stream: bool) -> None:
    made = client.chat.completions.create(model="tiny", messages=MESSAGES, n=3, stream=stream)
    texts = dict.fromkeys(range(3), "")
    if isinstance(made, openai.Stream):
        chunks = list(made)
        assert len({c.id for c in chunks}) == 1
        for choice in [c for chunk in chunks for c in chunk.choices]:
            texts[choice.index] += choice.delta.content or ""
    else:
        assert [c.index for c in made.choices] == [0, 1, 2]
        texts = {c.index: c.message.content or "" for c in made.choices}
        assert made.usage is not None
        assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (7, 12)
        assert made.usage.total_tokens == 19
    assert texts == dict.fromkeys(range(3), TEXT)
    _assert_single_samples(router, 3)


def test_three_samples_streamed_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, n=3, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (7, 12, 19)
    assert all(c.usage is None for c in chunks)
    assert sorted(c.choices[0].index for c in chunks if c.choices[0].finish_reason) == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_completion(client: openai.OpenAI, router: Router, stream: bool) -> None:
    made = client.completions.create(model="tiny", prompt=f"{SECRET} ü", max_tokens=4, stream=stream)
    choices = [c.choices[0] for c in made] if isinstance(made, openai.Stream) else made.choices
    assert "".join(c.text for c in choices) == f"<{SECRET} ü>"
    assert choices[-1].finish_reason == "length"
    assert all(e.prompts[0].body["max_tokens"] == 4 for e in router.engines)


@pytest.mark.parametrize("prompt", [[1, 2, 3], ["x"]], ids=["ids", "list-of-one"])
def test_completion_prompt_forms(client: openai.OpenAI, router: Router, prompt: Any) -> None:
    client.completions.create(model="tiny", prompt=prompt)
    batch = isinstance(prompt[0], str)
    for engine in router.engines:
        sent = engine.prompts[0].body
        assert sent["prompt"] == prompt
        assert isinstance(sent["bootstrap_room"], list) == isinstance(sent["rid"], list) == batch


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [["a", "b", "c"], [[1], [2, 3], [4]]], ids=["texts", "ids"])
def test_batched_prompts(client: openai.OpenAI, router: Router, prompts: Any, stream: bool) -> None:
    made = client.completions.create(model="tiny", prompt=prompts, stream=stream)
    texts = dict.fromkeys(range(3), "")
    for choice in [c for chunk in made for c in chunk.choices] if stream else made.choices:  # type: ignore[union-attr]
        texts[choice.index] += choice.text
    assert list(texts.values()) == [f"<{p}>" for p in prompts]
    for engine in router.engines:
        (seen,) = engine.prompts
        assert len(set(seen.body["bootstrap_room"])) == len(set(seen.body["rid"])) == 3


def test_batched_prompts_with_two_samples(client: openai.OpenAI) -> None:
    made = client.completions.create(model="tiny", prompt=["a", "b"], n=2)
    assert [(c.index, c.text) for c in made.choices] == [(0, "<a>"), (1, "<a>"), (2, "<b>"), (3, "<b>")]
    assert made.usage is not None
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (14, 16)


def test_completion_logprobs(client: openai.OpenAI) -> None:
    made = client.completions.create(model="tiny", prompt="x", logprobs=1)
    assert made.choices[0].logprobs is not None
    assert made.choices[0].logprobs.tokens == ["<x>"]
    assert made.choices[0].logprobs.top_logprobs == [{"<x>": -0.5}]


def test_completion_streamed_with_usage(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="tiny", prompt="x", stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert last.usage is not None
    assert last.usage.total_tokens == 11
    assert all(c.usage is None for c in chunks)


def test_models(client: openai.OpenAI) -> None:
    assert [m.model_dump() for m in client.models.list()] == [shapes.MODEL_CARD]
    assert client.models.retrieve("tiny").id == "tiny"


async def test_async_client(router: Router) -> None:
    async with openai.AsyncOpenAI(base_url=router.url + "/v1", api_key="any", max_retries=0) as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        words = [c.choices[0].delta.content async for c in stream]
        models = [m.id async for m in client.models.list()]
    assert "".join(filter(None, words)) == TEXT
    assert models == ["tiny"]


def _assert_single_samples(router: Router, samples: int) -> None:
    """Each sample went out alone, with a room and a request id of its own, equal on both engines."""
    sides = []
    for engine in router.engines:
        bodies = [seen.body for seen in engine.prompts]
        assert [b["n"] for b in bodies] == [1] * samples
        assert len({b["bootstrap_room"] for b in bodies}) == len({b["rid"] for b in bodies}) == samples
        sides.append({(b["bootstrap_room"], b["rid"]) for b in bodies})
    assert sides[0] == sides[1]
