"""Token counts of several samples as those of one request."""

from __future__ import annotations

import json

import pytest

from plait.router.samples.errors import MergeError
from plait.router.samples.usage import merged_usage


def _usage(prompt: int, completion: object, reasoning: object, cached: int) -> str:
    return (
        f'{{"prompt_tokens": {prompt}, "total_tokens": 0, "completion_tokens": {json.dumps(completion)}, '
        f'"prompt_tokens_details": {{"cached_tokens":{cached}}}, '
        f'"reasoning_tokens": {json.dumps(reasoning)}, "later": 1e-07}}'
    )


def test_prompts_count_once_and_what_was_generated_counts_each_time() -> None:
    merged = merged_usage([_usage(10, 3, 1, 4), _usage(10, 5, 0, 9), _usage(10, 7, 2, 9)])
    assert merged == _usage(10, 15, 3, 4).replace('"total_tokens": 0', '"total_tokens": 25')


def test_counts_that_an_engine_leaves_out_stay_out() -> None:
    assert merged_usage(['{"prompt_tokens":1,"completion_tokens":2}'] * 2) == (
        '{"prompt_tokens":1,"completion_tokens":4}'
    )
    assert json.loads(merged_usage([_usage(1, 2, None, 0), _usage(1, 2, 5, 0)]))["reasoning_tokens"] is None


def test_a_count_missing_from_a_later_sample_is_none() -> None:
    assert json.loads(merged_usage([_usage(1, 2, 3, 0), _usage(1, 2, None, 0)]))["reasoning_tokens"] == 3


@pytest.mark.parametrize("bad", ['"x"', "1.5", "true", "[]"])
def test_a_count_that_is_no_whole_number_names_the_sample(bad: str) -> None:
    with pytest.raises(MergeError, match=r"sample 1: 'usage\.completion_tokens'"):
        merged_usage(['{"completion_tokens":1}', f'{{"completion_tokens":{bad}}}'])


def test_usage_that_is_no_object_names_the_sample() -> None:
    with pytest.raises(MergeError, match="sample 1: 'usage' is no object"):
        merged_usage(['{"completion_tokens":1}', "null"])
