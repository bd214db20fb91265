"""Samples put together as they come: whole ones at the end, streams at once, and each fault to its leg."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plait.router.answers import EngineError
from plait.router.body import Route, parse
from plait.router.merging import Merging


class FakeLeg:
    """A leg, to a merging."""

    def __init__(self) -> None:
        self.done = False
        self.streamed = False
        self.answer = b""
        self.said: EngineError | None = None
        self.broken: list[str] = []
        self._data = b""

    def put(self, *events: bytes, done: bool = False, said: EngineError | None = None) -> None:
        """What came since the last look."""
        self.streamed = True
        self._data += b"".join(b"data: %b\n\n" % event for event in events)
        self.done, self.said = done, said

    def take(self) -> bytes:
        data, self._data = self._data, b""
        return data

    def fail_broken(self, message: str) -> None:
        self.broken.append(message)


def merging(n: int = 2, route: Route = Route.COMPLETIONS, **fields: Any) -> tuple[Merging, list[Any]]:
    if route is Route.GENERATE:
        body = {"text": "x", "sampling_params": {"n": n}} | fields
    else:
        body = {"prompt": "x", "n": n} | fields
    call = parse(json.dumps(body).encode(), route, max_batch=100)
    return Merging(call), [FakeLeg() for _ in range(n)]


def event(text: str, *, id: str = "x", finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    part = {"id": id, "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps(part, separators=(",", ":")).encode()


def choices(data: bytes) -> list[tuple[int, str]]:
    found = [e[6:] for e in data.split(b"\n\n") if e and e != b"data: [DONE]"]
    return [(c["index"], c["text"]) for e in found for c in json.loads(e)["choices"]]


def whole(text: str) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return json.dumps(
        {
            "id": "x",
            "object": "text_completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
    ).encode()


# --- streams -----------------------------------------------------------------------------------------------


def test_events_go_on_as_they_come() -> None:
    it, legs = merging()
    legs[1].put(event("b"))
    assert choices(it.events(legs)) == [(1, "b")]
    assert it.events(legs) == b""
    legs[0].put(event("a"), event("A"))
    legs[1].put(event("B"))
    assert choices(it.events(legs)) == [(0, "a"), (0, "A"), (1, "B")]
    assert not it.ended
    legs[0].put(done=True)
    assert it.events(legs) == b""
    legs[1].put(event("!", finish="stop"), done=True)
    last = it.events(legs)
    assert choices(last) == [(1, "!")]
    assert last.endswith(b"data: [DONE]\n\n")
    assert it.ended
    assert it.failed is None
    assert it.events(legs) == b"", "a leg that is complete is not looked at again"


def test_sample_with_an_error_ends_the_look() -> None:
    it, legs = merging(3)
    legs[0].put(event("a"))
    legs[1].put(b'{"error": {"message": "no"}}', said=EngineError("no"))
    legs[2].put(event("c"))
    assert choices(it.events(legs)) == [(0, "a")]
    assert it.failed is legs[1]
    assert not any(leg.broken for leg in legs), "whoever delivers fails it, when the rest has gone out"


def test_sample_that_was_aborted_is_one_that_failed() -> None:
    """What says so is an event like others: only the leg, which looks into it, knows."""
    it, legs = merging()
    legs[0].put(event("a", finish="abort"), said=EngineError("aborted"))
    it.events(legs)
    assert it.failed is legs[0]


def test_error_of_an_unknown_form_breaks_its_leg_and_is_not_quoted() -> None:
    it, legs = merging()
    legs[0].put(b'{"error": "secret"}')
    assert it.events(legs) == b""
    assert it.failed is None
    assert len(legs[0].broken) == 1
    assert "secret" not in legs[0].broken[0]


@pytest.mark.parametrize("payload", [b"not JSON", b"{}", b'{"choices": [{"text": "a"}]}'])
def test_event_that_cannot_be_merged_breaks_its_leg(payload: bytes) -> None:
    it, legs = merging()
    legs[1].put(payload)
    it.events(legs)
    assert "cannot be merged" in legs[1].broken[0]
    assert not legs[0].broken


def test_whole_answer_among_streams_is_no_sample_left_out() -> None:
    it, legs = merging()
    legs[0].put(event("a"), done=True)
    legs[1].answer, legs[1].done = whole("b"), True
    it.events(legs)
    assert not it.ended
    assert not legs[0].broken
    assert len(legs[1].broken) == 1


# --- whole answers -----------------------------------------------------------------------------------------


def test_whole_answer_needs_all_samples() -> None:
    it, legs = merging()
    for leg, text in zip(legs, "ab", strict=True):
        leg.answer = whole(text)
        assert it.whole(legs, legs) is None
        leg.done = True
    answer = json.loads(it.whole(legs, legs) or b"")
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "a"), (1, "b")]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_answer_that_cannot_be_merged_breaks_its_leg() -> None:
    it, legs = merging()
    for leg, answer in zip(legs, (whole("a"), b"[]"), strict=True):
        leg.done, leg.answer = True, answer
    assert it.whole(legs, legs) is None
    assert not legs[0].broken
    assert "cannot be merged" in legs[1].broken[0]


def native(prompt: list[Any]) -> bytes:
    meta = {"id": "x", "input_token_logprobs": prompt, "prompt_tokens": 1, "completion_tokens": 1}
    return json.dumps({"text": "t", "meta_info": meta}).encode()


def test_prompt_logprobs_of_each_sample_come_from_its_prefill() -> None:
    it, decodes = merging(2, Route.GENERATE, return_logprob=True, logprob_start_len=0)
    prefills: list[Any] = [FakeLeg(), FakeLeg()]
    for number in range(2):
        decodes[number].done, decodes[number].answer = True, native([])
        assert it.whole(prefills, decodes) is None
    for number in range(2):
        prefills[number].done, prefills[number].answer = True, native([[-number, 1, None]])
    found = json.loads(it.whole(prefills, decodes) or b"")
    assert [r["meta_info"]["input_token_logprobs"] for r in found] == [[[0, 1, None]], [[-1, 1, None]]]


def test_prompt_logprobs_that_do_not_fit_break_the_prefill_leg() -> None:
    it, decodes = merging(2, Route.GENERATE, return_logprob=True, logprob_start_len=0)
    prefills: list[Any] = [FakeLeg(), FakeLeg()]
    for leg in (*decodes, *prefills):
        leg.done, leg.answer = True, native([])
    prefills[1].answer = b"[]"
    assert it.whole(prefills, decodes) is None
    assert "logprobs cannot be merged" in prefills[1].broken[0]
    assert not any(leg.broken for leg in decodes)
