"""Counting samples: what an engine would read is what the router counts, or the request is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.router.samples.json_text import STRINGS, VALUES, lists, loads, objects

from plait.router.body import Route
from plait.router.errors import RouterError
from plait.router.samples.split import MAX_SAMPLES, sample_count, single_sample_body

OPENAI = [Route.CHAT, Route.COMPLETIONS]
ODD = [0, -1, True, False, "3", 3.0, 2.5, [], {}, 1e30, MAX_SAMPLES + 1]


@pytest.mark.parametrize("route", OPENAI)
@pytest.mark.parametrize(
    ("fields", "count"), [({}, 1), ({"n": None}, 1), ({"n": 1}, 1), ({"n": 3}, 3), ({"n": 128}, 128)]
)
def test_n_of_the_openai_routes(route: Route, fields: dict[str, Any], count: int) -> None:
    assert sample_count(fields, route, batch=None) == count


@pytest.mark.parametrize("route", OPENAI)
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_n_of_another_form_is_refused(route: Route, value: object) -> None:
    """An engine reads "3" and 3.0 as 3: passed on uncounted they would be three samples in one room."""
    with pytest.raises(RouterError) as caught:
        sample_count({"n": value}, route, batch=None)
    assert (caught.value.status, caught.value.param) == (400, "n")
    assert "from 1 to 128" in caught.value.message


def test_the_bound_is_the_callers() -> None:
    assert sample_count({"n": 4}, Route.CHAT, batch=None, max_samples=4) == 4
    with pytest.raises(RouterError, match="from 1 to 4"):
        sample_count({"n": 5}, Route.CHAT, batch=None, max_samples=4)


def test_n_outside_sampling_params_is_nothing_to_generate() -> None:
    assert sample_count({"n": 5, "text": "a"}, Route.GENERATE, batch=None) == 1


@pytest.mark.parametrize(
    ("sampling", "batch", "count"),
    [
        (None, None, 1),
        ({}, None, 1),
        ({"n": 2}, None, 2),
        ({"n": 2}, 3, 2),
        ([{"n": 2}, {"n": 2}], 2, 2),
        ([{}, {"n": 1}], 2, 1),
        ("garbage", None, 1),
    ],
)
def test_n_of_generate(sampling: object, batch: int | None, count: int) -> None:
    assert sample_count({"sampling_params": sampling}, Route.GENERATE, batch=batch) == count


@pytest.mark.parametrize("value", [*ODD, None], ids=repr)
def test_odd_n_of_generate_is_refused(value: object) -> None:
    """null too: the engine compares it with 1 and fails with a 500."""
    for sampling, batch, param in (
        ({"n": value}, None, "sampling_params.n"),
        ([{"n": 1}, {"n": value}], 2, "sampling_params[1].n"),
    ):
        with pytest.raises(RouterError) as caught:
            sample_count({"sampling_params": sampling}, Route.GENERATE, batch=batch)
        assert (caught.value.status, caught.value.param) == (400, param)


def test_counts_that_differ_within_a_request_are_refused() -> None:
    with pytest.raises(RouterError, match=r"same for all prompts.*not 1 and 2") as caught:
        sample_count({"sampling_params": [{"n": 2}, {}]}, Route.GENERATE, batch=2)
    assert caught.value.param == "sampling_params.n"


@pytest.mark.parametrize(("sampling", "batch"), [([], None), ([], 2), ([{}], None), ([{}, {}], 3)])
def test_a_list_of_sampling_params_needs_a_prompt_for_each(sampling: list[object], batch: int | None) -> None:
    """An engine answers these with a 500, or (n > 1) reads them only while n is in them."""
    with pytest.raises(RouterError) as caught:
        sample_count({"sampling_params": sampling}, Route.GENERATE, batch=batch)
    assert (caught.value.status, caught.value.param) == (400, "sampling_params")


@pytest.mark.parametrize(("n", "best_of"), [(1, 2), (2, 1), (2, 3), (1, True), (1, "1")])
def test_best_of_is_refused_where_it_would_choose(n: int, best_of: object) -> None:
    with pytest.raises(RouterError) as caught:
        sample_count({"n": n, "best_of": best_of}, Route.COMPLETIONS, batch=None)
    assert (caught.value.param, caught.value.code) == ("best_of", "unsupported")


def test_best_of_that_chooses_nothing_is_fine() -> None:
    assert sample_count({"n": 2, "best_of": 2}, Route.COMPLETIONS, batch=None) == 2
    assert sample_count({"best_of": 1}, Route.COMPLETIONS, batch=None) == 1
    assert sample_count({"best_of": None}, Route.COMPLETIONS, batch=None) == 1
    # Chat has no such field: unknown ones pass.
    assert sample_count({"best_of": 7}, Route.CHAT, batch=None) == 1


@pytest.mark.parametrize("route", OPENAI)
def test_only_the_count_changes_in_the_body(route: Route) -> None:
    raw = (
        '{ "x":1e-07,"n" : 3 ,"日本":{"n":9},"\\u006e":\t12, "n":1,"big":12345678901234567890123}\n'.encode()
    )
    assert single_sample_body(raw, route) == (
        '{ "x":1e-07,"n" : 1 ,"日本":{"n":9},"\\u006e":\t1, "n":1,"big":12345678901234567890123}\n'.encode()
    )


def test_only_the_count_changes_in_sampling_params() -> None:
    raw = b'{"n":7,"sampling_params":{"t":0.10,"n":3,"x":{"n":4},"\\u006E":3},"sampling_params" :{"n":3}}'
    assert single_sample_body(raw, Route.GENERATE) == (
        b'{"n":7,"sampling_params":{"t":0.10,"n":1,"x":{"n":4},"\\u006E":1},"sampling_params" :{"n":1}}'
    )
    raw = b'{"text":["a","b"],"sampling_params": [ {"n":3},{"n":3,"a":[{"n":5}]} ]}'
    assert single_sample_body(raw, Route.GENERATE) == (
        b'{"text":["a","b"],"sampling_params": [ {"n":1},{"n":1,"a":[{"n":5}]} ]}'
    )
    raw = b'{"sampling_params":null,"sampling_params":{"n":3}}'
    assert single_sample_body(raw, Route.GENERATE) == b'{"sampling_params":null,"sampling_params":{"n":1}}'


COUNTED = objects(VALUES, keys=STRINGS | st.just('"n"') | st.just('"sampling_params"'))


def _ones(value: Any) -> Any:
    return ("object", [(key, "#1" if key == "n" else each) for key, each in value[1]])


@given(COUNTED)
def test_the_body_reads_as_before_but_for_n(text: str) -> None:
    assert loads(single_sample_body(text.encode("utf-8", "surrogatepass"), Route.CHAT).decode()) == _ones(
        loads(text)
    )


@settings(max_examples=60)
@given(objects(COUNTED | lists(COUNTED), keys=st.sampled_from(['"n"', '"sampling_params"', '"text"'])))
def test_the_body_reads_as_before_but_for_n_of_sampling_params(text: str) -> None:
    def one(key: str, value: Any) -> Any:
        if key != "sampling_params":
            return value
        return [_ones(each) for each in value] if isinstance(value, list) else _ones(value)

    expected = ("object", [(key, one(key, value)) for key, value in loads(text)[1]])
    assert loads(single_sample_body(text.encode(), Route.GENERATE).decode()) == expected


def test_a_body_nested_too_deeply_is_a_clear_400() -> None:
    raw = b'{"n":2,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(RouterError, match="nested too deeply") as caught:
        single_sample_body(raw, Route.CHAT)
    assert caught.value.status == 400


def test_the_single_body_counts_as_one() -> None:
    raw = json.dumps({"prompt": "a", "n": 5}).encode()
    assert (
        sample_count(json.loads(single_sample_body(raw, Route.COMPLETIONS)), Route.COMPLETIONS, batch=None)
        == 1
    )
