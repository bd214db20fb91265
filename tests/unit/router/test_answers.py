"""Failures hidden in answers, failures stated in them, and merged logprobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plait.router.answers import EngineError, hidden_error, merge_prompt_logprobs, stated_error


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def aborted(**reason: Any) -> dict[str, Any]:
    return {"text": "", "meta_info": {"finish_reason": {"type": "abort", **reason}}}


@pytest.mark.parametrize(
    "healthy",
    [
        {"text": 'she said "error" and "abort"', "meta_info": {"finish_reason": {"type": "stop"}}},
        {"choices": [{"text": "x", "logprobs": {"tokens": ['"error"', "abort"]}, "finish_reason": "stop"}]},
        {"choices": [{"delta": {"content": "abort"}, "finish_reason": None}], "error": None},
        {"text": "", "meta_info": {"finish_reason": None, "note": "abort"}},
        ["error", "abort"],
        "abort",
    ],
)
def test_healthy_answers_hide_nothing(healthy: Any) -> None:
    assert hidden_error(dumped(healthy)) is None


def test_torn_json_is_not_looked_into() -> None:
    assert hidden_error(b'{"error": {"mess') is None


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (
            {"error": {"message": "no", "type": "BadRequest", "param": "max_tokens", "code": 400}},
            EngineError("no", 400, "BadRequest", "max_tokens"),
        ),
        ({"error": {"message": "no", "code": "some_code"}}, EngineError("no", 0)),
        ({"error": "plain"}, EngineError("plain", 0)),
        (aborted(message="long", status_code=400), EngineError("long", 400, plain=False)),
        (aborted(message="gone", status_code=None), EngineError("gone", 0, plain=False)),
        (
            [{"text": "fine", "meta_info": {}}, aborted(message="second")],
            EngineError("second", 0, plain=False),
        ),
        (
            {"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]},
            EngineError("the engine aborted the request", plain=False),
        ),
    ],
)
def test_hidden_errors_are_found(answer: Any, error: EngineError) -> None:
    assert hidden_error(dumped(answer)) == error


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (dumped({"object": "error", "message": "flat", "type": "t", "param": None, "code": 400}), "flat"),
        (dumped({"error": {"message": "nested"}}), "nested"),
        (dumped({"error": "text"}), "text"),
        (dumped({"detail": "fastapi"}), "fastapi"),
        (
            dumped({"detail": [{"loc": ["body", "n"], "msg": "wrong"}]}),
            '[{"loc":["body","n"],"msg":"wrong"}]',
        ),
        (b"<html>502</html>", "<html>502</html>"),
        (b"", "HTTP 418 without a message"),
        (b"\xff\xfe", "��"),
        (b"[1]", "[1]"),
    ],
)
def test_stated_errors_are_read(body: bytes, message: str) -> None:
    error = stated_error(body, status=418)
    assert (error.message, error.status) == (message, 418)


def test_status_of_the_answer_counts_not_the_code_in_it() -> None:
    assert stated_error(dumped({"message": "x", "code": 400}), status=503).status == 503


def test_long_messages_are_cut() -> None:
    assert len(stated_error(b"x" * 100_000, status=500).message) < 10_000


# --- logprobs ----------------------------------------------------------------------------------------------


def meta(**fields: Any) -> dict[str, Any]:
    return {"text": "t", "meta_info": {"id": "r", **fields}}


def merged(prefill: Any, decode: Any) -> Any:
    return json.loads(merge_prompt_logprobs(dumped(prefill), dumped(decode)))


def test_prefill_goes_in_front() -> None:
    prefill = meta(input_token_logprobs=[[None, 1, None]], input_top_logprobs=[None, [[-1, 2, None]]])
    decode = meta(
        input_token_logprobs=[[-2, 3, None]], input_top_logprobs=[], output_token_logprobs=[[-3, 4, None]]
    )
    assert merged(prefill, decode) == meta(
        input_token_logprobs=[[None, 1, None], [-2, 3, None]],
        input_top_logprobs=[None, [[-1, 2, None]]],
        output_token_logprobs=[[-3, 4, None]],
    )


def test_what_decode_left_out_is_taken_over_and_nothing_else() -> None:
    prefill = meta(input_token_ids_logprobs=[[[-1, 2, None]]], output_token_logprobs=[9], prompt_tokens=5)
    assert merged(prefill, meta(prompt_tokens=4)) == meta(
        input_token_ids_logprobs=[[[-1, 2, None]]], prompt_tokens=4
    )


def test_flat_arrays_are_not_joined() -> None:
    flat = {"input_top_logprobs_val_flat": [1.0, 2.0], "input_top_logprobs_shape": [2, 1]}
    empty = {"input_top_logprobs_val_flat": [], "input_top_logprobs_shape": [0, 0]}
    assert merged(meta(**flat), meta(**empty)) == meta(**flat)


def test_batches_are_merged_item_by_item() -> None:
    prefill = [meta(input_token_logprobs=[i]) for i in range(3)]
    decode = [meta(input_token_logprobs=[]) for _ in range(3)]
    assert merged(prefill, decode) == prefill


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ([meta()], meta()),
        ([meta()], [meta(), meta()]),
        ({"text": "t"}, meta()),
        (meta(), {"text": "t"}),
        ([1], [2]),
    ],
)
def test_answers_that_do_not_fit_are_refused(prefill: Any, decode: Any) -> None:
    with pytest.raises(ValueError, match=r"result"):
        merged(prefill, decode)
