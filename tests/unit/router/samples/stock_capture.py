"""Writes stock_answers.json: what SGLang's own serving code answers for n samples, and for each one alone.

    python tests/unit/router/samples/stock_capture.py

Only the model is made up: OpenAIServingChat, OpenAIServingCompletion and TokenizerManager's batch functions
are SGLang's, fed with the dictionaries that its detokenizer gives. So `merged` of a case is what one engine
sends for n > 1, `singles` what it sends for the same samples asked for one by one; a merge must turn the
second into the first. Needs sglang (half a minute to import).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

TARGET = Path(__file__).with_name("stock_answers.json")
_WORDS = (
    ("Hé", "llo", ' "w"\n'),
    ("2", "**", "70"),
    ("fin ", "日本", "\\"),
    ("a", "b", "c"),
    ("x", "yy", "zzz"),
)


def sequence(prompt: int, sample: int, rid: str) -> list[dict[str, Any]]:
    """The outputs of one generated sequence, cumulative, as TokenizerManager yields them when streaming."""
    number = prompt * 3 + sample
    words = _WORDS[number % len(_WORDS)][: 2 + number % 2]
    outputs = []
    for step in range(1, len(words) + 1):
        ids = [2**31 + number + k for k in range(step)]
        logprobs = [(-1e-07 * (k + 1) - number, ids[k], words[k]) for k in range(step)]
        meta: dict[str, Any] = {
            "id": rid,
            "finish_reason": None,
            "prompt_tokens": 7 + prompt,
            "weight_version": "default",
            "completion_tokens": step,
            "reasoning_tokens": sample,
            "cached_tokens": 4 if sample == 0 else 7,
            "cached_tokens_details": {"device": 4 + sample, "host": 0},
            "output_token_logprobs": logprobs,
            "output_top_logprobs": [[entry] for entry in logprobs],
            "output_token_logprobs_length": step,
            "big": 2**62 + number,
        }
        if step == len(words):
            stop = {"type": "stop", "matched": 2} if number % 2 else {"type": "length", "length": step}
            meta["finish_reason"] = stop
            meta["hidden_states"] = [[0.1, -0.0, 1e-05]]
        outputs.append({"text": "".join(words[:step]), "output_ids": ids, "meta_info": meta})
    return outputs


class Manager:
    """TokenizerManager as the serving code sees it: `samples` picks which samples of each prompt exist."""

    def __init__(self, *, prompts: int, samples: list[int], listed: bool, **server_args: Any) -> None:
        defaults = {
            "tool_call_parser": None,
            "reasoning_parser": None,
            "incremental_streaming_output": False,
            "stream_response_default_include_usage": False,
            "enable_cache_report": True,
            "default_chat_template_kwargs": None,
        }
        self.server_args = SimpleNamespace(**{**defaults, **server_args})
        self.model_config = SimpleNamespace(
            get_default_sampling_params=dict, hf_config=SimpleNamespace(model_type="x", architectures=[])
        )
        self.tokenizer = SimpleNamespace(encode=lambda text: [], chat_template="x")
        self._pairs = [(prompt, sample) for prompt in range(prompts) for sample in samples]
        self._listed = listed or len(samples) > 1

    async def _one(self, prompt: int, sample: int, *, stream: bool) -> AsyncIterator[dict[str, Any]]:
        outputs = sequence(prompt, sample, f"p{prompt}s{sample}")
        # One at a time, in a fixed order: what is ready together, a stock engine sends in any order.
        wait = 20 + 3 * self._pairs.index((prompt, sample))
        for output in outputs if stream else outputs[-1:]:
            for _ in range(wait):
                await asyncio.sleep(0)
            yield output
            wait = 40

    async def generate_request(self, request: Any, raw_request: object = None) -> AsyncIterator[Any]:
        from sglang.srt.managers.tokenizer_manager import TokenizerManager as Stock

        stream = request.stream
        generators = [self._one(*pair, stream=stream) for pair in self._pairs]
        if not self._listed:
            async for output in generators[0]:
                yield output
        elif stream:
            rids = [f"p{prompt}s{sample}" for prompt, sample in self._pairs]
            async for output in Stock._stream_batch_responses(self, generators, rids):
                yield dict(output)
        else:
            yield await Stock._collect_batch_responses(self, generators)


async def _answer(route: str, fields: dict[str, Any], manager: Manager) -> Any:
    """The body of the answer, or the payloads of its events."""
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
    from sglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion
    from sglang.srt.utils.json_response import dumps_json

    stream = bool(fields.get("stream"))
    adapted = SimpleNamespace(stream=stream)
    if route == "/generate":
        outputs = [output async for output in manager.generate_request(adapted)]
        if stream:  # http_server.py, generate_request
            return [*(dumps_json(output).decode() for output in outputs), "[DONE]"]
        return dumps_json(outputs[0]).decode()
    chat = route == "/v1/chat/completions"
    request = (ChatCompletionRequest if chat else CompletionRequest)(**fields)
    template = SimpleNamespace(completion_template_name=None, force_reasoning=False, reasoning_config=None)
    serving = (OpenAIServingChat if chat else OpenAIServingCompletion)(manager, template)
    if not stream:
        response = await serving._handle_non_streaming_request(adapted, request, None)
        return response.model_dump_json()
    generate = serving._generate_chat_stream if chat else serving._generate_completion_stream
    text = "".join([chunk async for chunk in generate(adapted, request, None)])
    return [event.removeprefix("data: ") for event in text.split("\n\n") if event]


_CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
_USAGE = {"include_usage": True}
CASES: list[dict[str, Any]] = [
    {"route": "/v1/chat/completions", "fields": _CHAT},
    {
        "route": "/v1/chat/completions",
        "fields": {
            **_CHAT,
            "logprobs": True,
            "top_logprobs": 1,
            "return_cached_tokens_details": True,
            "return_hidden_states": True,
        },
    },
    {"route": "/v1/chat/completions", "fields": {**_CHAT, "stream": True}},
    {
        "route": "/v1/chat/completions",
        "fields": {
            **_CHAT,
            "stream": True,
            "stream_options": {**_USAGE, "continuous_usage_stats": True},
            "logprobs": True,
            "return_cached_tokens_details": True,
            "return_hidden_states": True,
        },
    },
    {"route": "/v1/completions", "fields": {"model": "m", "prompt": "a", "logprobs": 1}},
    {
        "route": "/v1/completions",
        "fields": {
            "model": "m",
            "prompt": ["a", "b"],
            "echo": True,
            "return_token_ids": True,
            "return_cached_tokens_details": True,
        },
        "batch": 2,
    },
    {
        "route": "/v1/completions",
        "fields": {
            "model": "m",
            "prompt": ["a", "b"],
            "stream": True,
            "stream_options": _USAGE,
            "echo": True,
        },
        "batch": 2,
    },
    {
        "route": "/v1/completions",
        "fields": {
            "model": "m",
            "prompt": ["a"],
            "stream": True,
            "stream_options": {**_USAGE, "continuous_usage_stats": True},
            "logprobs": 1,
            "return_cached_tokens_details": True,
            "return_hidden_states": True,
        },
        "batch": 1,
    },
    {"route": "/generate", "fields": {"text": "a"}},
    {"route": "/generate", "fields": {"text": ["a", "b"]}, "batch": 2},
    {"route": "/generate", "fields": {"text": "a", "stream": True}},
    {"route": "/generate", "fields": {"text": ["a", "b"], "stream": True}, "batch": 2},
]


async def capture(*, samples: int = 3) -> list[dict[str, Any]]:
    """All cases with `merged` and `singles`."""
    done = []
    for case in CASES:
        route, fields, batch = case["route"], case["fields"], case.get("batch")
        counted = fields if route == "/generate" else {**fields, "n": samples}
        listed, prompts = batch is not None, batch or 1
        every = Manager(prompts=prompts, samples=list(range(samples)), listed=listed)
        merged = await _answer(route, counted, every)
        singles = [
            await _answer(route, fields, Manager(prompts=prompts, samples=[sample], listed=listed))
            for sample in range(samples)
        ]
        done.append({**case, "batch": batch, "merged": merged, "singles": singles})
    return done


def main() -> None:
    """Write the file, or the path given as first argument."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    with mock.patch.object(time, "time", return_value=1_700_000_000.0):
        cases = asyncio.run(capture())
    target.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
