"""Answers of single samples become, byte for byte, what one stock engine answers for n samples."""

from __future__ import annotations

import json

import pytest
from tests.unit.router.samples.stock import Case, cases

from plait.router.body import Route
from plait.router.samples.errors import MergeError
from plait.router.samples.whole import merge_whole


@pytest.mark.parametrize("case", cases(stream=False), ids=lambda case: case.name)
def test_the_merge_is_what_a_stock_engine_answers(case: Case) -> None:
    merged = merge_whole(case.route, [single.encode() for single in case.singles], batch=case.batch)
    assert merged.decode() == case.merged


def test_the_stored_cases_have_what_they_are_for() -> None:
    stored = cases(stream=False)
    assert {case.route for case in stored} == set(Route)
    assert any(case.batch == 2 and len(case.singles) == 3 for case in stored)
    assert any("1e-7" in case.merged and "sglext" in case.merged for case in stored)


def _answer(index: object = 0, usage: str = "null") -> bytes:
    choice = f'{{"x":1.0e+5, "index": {json.dumps(index)} }}'
    return f'{{"id": "a", "choices": [ {choice} ], "usage": {usage}}}'.encode()


def test_numbers_and_spaces_stay_as_the_engine_wrote_them() -> None:
    merged = merge_whole(Route.CHAT, [_answer(), _answer()], batch=None)
    assert (
        merged
        == b'{"id": "a", "choices": [{"x":1.0e+5, "index": 0 },{"x":1.0e+5, "index": 1 }], "usage": null}'
    )


def test_choices_out_of_order_are_put_in_order() -> None:
    answers = [
        b'{"choices":[{"index":1,"t":"b%d"},{"index":0,"t":"a%d"}]}' % (sample, sample) for sample in range(2)
    ]
    merged = json.loads(merge_whole(Route.COMPLETIONS, answers, batch=2))
    assert [(c["index"], c["t"]) for c in merged["choices"]] == [(0, "a0"), (1, "a1"), (2, "b0"), (3, "b1")]


def test_a_list_of_one_prompt_is_a_list() -> None:
    assert merge_whole(Route.GENERATE, [b'[{"a":1}]', b'[ {"a":2} ]'], batch=1) == b'[{"a":1},{"a":2}]'


@pytest.mark.parametrize(
    ("route", "second", "batch", "reason"),
    [
        (Route.CHAT, b"<html>", None, "an object must begin"),
        (Route.CHAT, b"\xff", None, "UTF-8"),
        (Route.CHAT, b'{"id":"a"}', None, "no 'choices'"),
        (Route.CHAT, b'{"choices":null}', None, "a list must begin"),
        (Route.CHAT, b'{"choices":[]}', None, "0 choices for 1 prompts"),
        (Route.CHAT, b'{"choices":[{}]}', None, "no 'index'"),
        (Route.CHAT, b'{"choices":[3]}', None, "an object must begin"),
        (Route.CHAT, _answer(1), None, "index 1, expected 0 .. 0"),
        (Route.CHAT, _answer(-1), None, "index -1"),
        (Route.CHAT, _answer("0"), None, "index"),
        (Route.CHAT, b'{"choices":[{"index":0}]}', None, "no 'usage'"),
        (
            Route.COMPLETIONS,
            b'{"choices":[{"index":0},{"index":0}]}',
            2,
            "index 0, expected 0 .. 1, each once",
        ),
        (Route.GENERATE, b"[]", None, "an object must begin"),
        (Route.GENERATE, b'{"a":1', None, "must stand at"),
        (Route.GENERATE, b'{"a":1} {"b":2}', None, "after the end"),
        (Route.GENERATE, b'[{"a":1}]', 2, "1 results for 2 prompts"),
        (Route.GENERATE, b"{}", 2, "a list must begin"),
    ],
)
def test_an_answer_of_another_shape_names_its_sample(
    route: Route, second: bytes, batch: int | None, reason: str
) -> None:
    firsts = {
        Route.CHAT: _answer(usage='{"prompt_tokens":1}'),
        Route.COMPLETIONS: b'{"choices":[{"index":0},{"index":1}]}',
        Route.GENERATE: b"{}" if batch is None else b"[{},{}]",
    }
    with pytest.raises(MergeError, match=reason) as caught:
        merge_whole(route, [firsts[route], second], batch=batch)
    assert caught.value.sample == 1
