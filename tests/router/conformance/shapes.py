"""Answers in the exact form of stock SGLang 0.5.17 (entrypoints/openai/protocol.py), made from the request.

What a client asked for can be found again in the answer (tools, logprobs, response format, prompts), so a
test sees that its request got through as it was meant, and its answer back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MODEL = "tiny"
MODEL_CARD = {
    "id": MODEL,
    "object": "model",
    "created": 1_700_000_000,
    "owned_by": "sglang",
    "root": MODEL,
    "parent": None,
    "max_model_len": 4096,
}
NO_MODEL = {
    "error": {
        "message": "The model 'unknown' does not exist",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
}
WORDS = ["Grüße", " aus", " 東京", " 🚅"]
DONE = b"data: [DONE]\n\n"
_PROMPT_TOKENS = 7


def whole(path: str, body: dict[str, Any]) -> bytes:
    """An answer that is not streamed."""
    if path == "/generate":
        return _dump(_generated(body))
    chat = path == "/v1/chat/completions"
    answer = {
        "id": "cmpl-1",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1_700_000_000,
        "model": body.get("model", MODEL),
        "choices": [_chat_choice(body, 0)] if chat else [_text_choice(body, i) for i in range(prompts(body))],
        "usage": _usage(1 if chat else prompts(body)),
        "metadata": {"weight_version": "default"},
    }
    return _dump(answer)


def stream(path: str, body: dict[str, Any]) -> list[bytes]:
    """The events of a streamed answer, one each, with [DONE]."""
    if path == "/generate":
        return [*_generated_events(body), DONE]
    chat = path == "/v1/chat/completions"
    choices = _chat_deltas(body) if chat else _text_deltas(body)
    sent = [_event(_chunk(body, [choice], chat=chat)) for choice in choices]
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = _usage(1 if chat else prompts(body))
        sent.append(_event(_chunk(body, [], chat=chat) | {"usage": usage}))
    return [*sent, DONE]


def prompts(body: dict[str, Any]) -> int:
    """Prompts of a completion request."""
    prompt = body.get("prompt")
    return len(prompt) if _is_batch(prompt) else 1


def text_of(body: dict[str, Any], index: int) -> str:
    """The text that the completion of prompt `index` answers with: it names the prompt."""
    prompt = body.get("prompt")
    one = (
        prompt[index] if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else prompt
    )
    return f"<{one}>"


def arguments_of(body: dict[str, Any]) -> str:
    """Arguments of the tool call: the names of the parameters that the tool was described with."""
    function = body["tools"][0]["function"]
    return json.dumps(dict.fromkeys(function["parameters"]["properties"], 2**70), ensure_ascii=False)


def _is_batch(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)


def _chat_choice(body: dict[str, Any], index: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(WORDS), "reasoning_content": None}
    finish = "stop"
    if body.get("tools"):
        message |= {"content": None, "tool_calls": [_tool_call(body, arguments_of(body))]}
        finish = "tool_calls"
    elif body.get("response_format"):
        message |= {"content": json.dumps(body["response_format"])}
    return {
        "index": index,
        "message": message | ({} if body.get("tools") else {"tool_calls": None}),
        "logprobs": _chat_logprobs(WORDS) if body.get("logprobs") else None,
        "finish_reason": finish,
        "matched_stop": 7,
    }


def _chat_deltas(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    def choice(delta: dict[str, Any], finish: str | None = None, words: list[str] | None = None) -> Any:
        empty = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}
        logprobs = _chat_logprobs(words) if body.get("logprobs") and words else None
        stop = None if finish is None else 7
        return {
            "index": 0,
            "delta": empty | delta,
            "logprobs": logprobs,
            "finish_reason": finish,
            "matched_stop": stop,
        }

    yield choice({"role": "assistant", "content": ""})
    if body.get("tools"):
        arguments = arguments_of(body)
        call = _tool_call(body, "")
        yield choice({"tool_calls": [call]})
        for part in (arguments[:3], arguments[3:]):
            more = {"id": None, "index": 0, "type": "function", "function": {"name": None, "arguments": part}}
            yield choice({"tool_calls": [more]})
        yield choice({}, "tool_calls")
        return
    for word in WORDS:
        yield choice({"content": word}, words=[word])
    yield choice({}, "stop")


def _text_choice(body: dict[str, Any], index: int) -> dict[str, Any]:
    text = text_of(body, index)
    return {
        "index": index,
        "text": text,
        "logprobs": _text_logprobs(text) if body.get("logprobs") else None,
        "finish_reason": "length",
        "matched_stop": None,
    }


def _text_deltas(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    texts = [text_of(body, index) for index in range(prompts(body))]
    halves = [(i, text[: len(text) // 2], None) for i, text in enumerate(texts)]
    halves += [(i, text[len(text) // 2 :], "length") for i, text in enumerate(texts)]  # type: ignore[misc]
    for index, text, finish in halves:
        yield {
            "index": index,
            "text": text,
            "logprobs": _text_logprobs(text) if body.get("logprobs") else None,
            "finish_reason": finish,
            "matched_stop": None,
        }


def _tool_call(body: dict[str, Any], arguments: str) -> dict[str, Any]:
    name = body["tools"][0]["function"]["name"]
    return {
        "id": "call_1",
        "index": 0,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _chat_logprobs(words: list[str]) -> dict[str, Any]:
    def one(word: str) -> dict[str, Any]:
        return {"token": word, "bytes": list(word.encode()), "logprob": -0.25}

    return {"content": [one(w) | {"top_logprobs": [one(w)]} for w in words]}


def _text_logprobs(text: str) -> dict[str, Any]:
    return {
        "text_offset": [-1],
        "token_logprobs": [-0.5],
        "tokens": [text],
        "top_logprobs": [{text: -0.5}],
    }


def _usage(answers: int) -> dict[str, Any]:
    prompt, completion = _PROMPT_TOKENS * answers, len(WORDS) * answers
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def _chunk(body: dict[str, Any], choices: list[Any], *, chat: bool) -> dict[str, Any]:
    return {
        "id": "cmpl-1",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 1_700_000_000,
        "model": body.get("model", MODEL),
        "choices": choices,
        "usage": None,
    }


def _generated(body: dict[str, Any]) -> Any:
    texts = body.get("text")
    several = isinstance(texts, list)
    made = [
        {"text": "".join(WORDS), "output_ids": [1, 2, 3, 4], "meta_info": _meta(rid)}
        for rid in (body["rid"] if several else [body["rid"]])
    ]
    return made if several else made[0]


def _generated_events(body: dict[str, Any]) -> Iterator[bytes]:
    for count in range(1, len(WORDS) + 1):
        meta = _meta(body["rid"]) | {"completion_tokens": count}
        if count < len(WORDS):
            meta["finish_reason"] = None
        yield _event({"text": "".join(WORDS[:count]), "output_ids": [count], "meta_info": meta})


def _meta(rid: str) -> dict[str, Any]:
    return {
        "id": rid,
        "finish_reason": {"type": "length", "length": len(WORDS)},
        "prompt_tokens": _PROMPT_TOKENS,
        "completion_tokens": len(WORDS),
        "cached_tokens": 0,
    }


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _event(value: Any) -> bytes:
    return b"data: " + _dump(value) + b"\n\n"
