"""Streams of single samples become the stream that one stock engine sends for n samples."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from tests.unit.router.samples.stock import Case, cases

from plait.router.body import Route
from plait.router.samples.errors import MergeError, SampleFailed
from plait.router.samples.streams import DONE, StreamMerge

STREAMS = pytest.mark.parametrize("case", cases(stream=True), ids=lambda case: case.name)


def _merge(case: Case, order: Iterable[int]) -> list[str]:
    """Payloads of the merged stream when the samples' events arrive in `order`."""
    merge = StreamMerge(case.route, len(case.singles), batch=case.batch)
    waiting = [iter(single) for single in case.singles]
    sent = b""
    for sample in order:
        payload = next(waiting[sample])
        sent += merge.end(sample) if payload == "[DONE]" else merge.feed(sample, payload.encode())
    assert merge.ended
    assert sent.endswith(b"\n\n")
    return [event.removeprefix("data: ") for event in sent.decode().split("\n\n")[:-1]]


def _orders(case: Case) -> list[list[int]]:
    whole = [[sample] * len(single) for sample, single in enumerate(case.singles)]
    mixed = list(itertools.chain(*whole))
    random.Random(7).shuffle(mixed)
    in_turn = [s for s in itertools.chain(*itertools.zip_longest(*whole)) if s is not None]
    return [list(itertools.chain(*whole)), list(itertools.chain(*reversed(whole))), in_turn, mixed]


def _by_choice(route: Route, payloads: list[str]) -> dict[object, list[Any]]:
    """Events by the choice they are of, ids left out; those of no choice in one list."""
    found: dict[object, list[Any]] = defaultdict(list)
    for payload in payloads:
        event = payload if payload == "[DONE]" else json.loads(payload)
        key: object = "all"
        if isinstance(event, dict) and route is Route.GENERATE:
            key = event["index"]
        elif isinstance(event, dict):
            del event["id"]  # a stock engine names each choice's own request; see the package's docstring
            key = event["choices"][0]["index"] if event["choices"] else "all"
        found[key].append(event)
    return dict(found)


@STREAMS
def test_each_choice_gets_the_events_of_a_stock_engine(case: Case) -> None:
    expected = _by_choice(case.route, case.merged)
    assert len(expected) == 1 + len(case.singles) * (case.batch or 1)
    for order in _orders(case):
        assert _by_choice(case.route, _merge(case, order)) == expected


@STREAMS
def test_every_event_is_written_as_the_engine_writes_it(case: Case) -> None:
    """Also the characters: key order, number forms. Ids are made equal on both sides first."""
    ids = {f'"id":"p{p}s{s}"' for p in range(2) for s in range(3)}

    def plain(payloads: list[str]) -> list[str]:
        if case.route is Route.GENERATE:
            return sorted(payloads)
        for own in ids:
            payloads = [payload.replace(own, '"id":"x"') for payload in payloads]
        return sorted(payloads)

    assert plain(_merge(case, _orders(case)[2])) == plain(case.merged)


@STREAMS
def test_events_in_another_form_are_merged_alike(case: Case) -> None:
    """White space and key order that no stock engine has: the long way gives the same."""

    def turned(payload: str) -> str:
        return payload if payload == "[DONE]" else json.dumps(dict(reversed(json.loads(payload).items())))

    odd = case._replace(singles=[[turned(payload) for payload in single] for single in case.singles])
    order = _orders(case)[3]
    assert _by_choice(case.route, _merge(odd, order)) == _by_choice(case.route, _merge(case, order))


@STREAMS
def test_what_is_of_all_choices_comes_last(case: Case) -> None:
    for order in _orders(case):
        merged = _merge(case, order)
        assert merged[-1] == "[DONE]"
        assert "[DONE]" not in merged[:-1]
        if case.route is not Route.GENERATE:
            of_choices = [bool(json.loads(payload)["choices"]) for payload in merged[:-1]]
            assert of_choices == sorted(of_choices, reverse=True)


def test_one_id_and_one_time_for_all_events() -> None:
    merge = StreamMerge(Route.CHAT, 2, batch=None)
    sent = merge.feed(1, _chunk("b", 7)) + merge.feed(0, _chunk("a", 8)) + merge.feed(0, _usage("a", 9))
    sent += merge.feed(1, _usage("b", 9)) + merge.end(0) + merge.end(1)
    events = [json.loads(event[6:]) for event in sent.split(b"\n\n")[:-2]]
    assert [(event["id"], event["created"]) for event in events] == [("b", 7)] * 3


def test_an_id_given_is_the_one_sent() -> None:
    merge = StreamMerge(Route.CHAT, 2, batch=None, answer_id='r"1')
    assert json.loads(merge.feed(1, _chunk("b", 7))[6:])["id"] == 'r"1'


def test_two_choices_in_one_event_both_get_their_index() -> None:
    merge = StreamMerge(Route.COMPLETIONS, 2, batch=2)
    payload = b'{"id":"a","object":"o","created":1,"model":"m","choices":[{"index":0,"text":""},{"index":1}]}'
    choices = json.loads(merge.feed(1, payload)[6:])["choices"]
    assert [choice["index"] for choice in choices] == [1, 3]


def test_a_tool_calls_index_is_not_a_choices() -> None:
    """Shape of protocol.py's DeltaMessage with ToolCall: an index of its own inside the choice."""
    payload = (
        '{"id":"a","object":"chat.completion.chunk","created":1,"model":"m:\\"x","choices":[{"index":0,"delta":'
        '{"role":null,"content":null,"tool_calls":[{"id":"call_1","index":1,"type":"function","function":'
        '{"name":"f","arguments":"{\\"error\\": {\\"index\\":0,"}}]},"finish_reason":null}],"usage":null}'
    )
    sent = StreamMerge(Route.CHAT, 3, batch=None).feed(2, payload.encode())
    assert sent.decode() == "data: " + payload.replace('[{"index":0', '[{"index":2') + "\n\n"


@pytest.mark.parametrize("route", list(Route))
@pytest.mark.parametrize("batch", [None, 2])
def test_an_error_event_is_reported_not_merged(route: Route, batch: int | None) -> None:
    """The form of serving_base.py's create_streaming_error_response and of /generate's stream."""
    payload = (
        b'{"error": {"object": "error", "message": "out of memory", "type": "X", "param": null, "code": 500}}'
    )
    with pytest.raises(SampleFailed) as caught:
        StreamMerge(route, 2, batch=batch).feed(1, payload)
    assert (caught.value.sample, caught.value.payload) == (1, payload)


def test_the_word_error_in_a_text_is_no_error() -> None:
    merge = StreamMerge(Route.CHAT, 2, batch=None)
    payload = _chunk("a", 1).replace(b'"delta":{}', b'"delta":{"error":"\\"error\\""}')
    assert json.loads(merge.feed(1, payload)[6:])["choices"][0]["delta"]["error"] == '"error"'
    native = StreamMerge(Route.GENERATE, 2, batch=None)
    assert native.feed(1, b'{"text":"a","x":"error","y":{"error":1},"error":null}') == (
        b'data: {"text":"a","x":"error","y":{"error":1},"error":null,"index":1}\n\n'
    )


@pytest.mark.parametrize(
    ("route", "batch", "payload"),
    [
        (Route.CHAT, None, b"garbage"),
        (Route.CHAT, None, b"\xff\xfe"),
        (Route.CHAT, None, b'{"id":"a"}'),
        (Route.CHAT, None, b'{"choices":null}'),
        (Route.CHAT, None, b'{"choices":[{"delta":{}}]}'),
        (Route.CHAT, None, b'{"choices":[{"index":1}]}'),
        (Route.CHAT, None, b'{"choices":[{"index":-1}]}'),
        (Route.CHAT, None, b'{"id":"a","object":"o","created":1,"model":"m","choices":[{"index":1,"x":1}]}'),
        (Route.GENERATE, None, b"[]"),
        (Route.GENERATE, None, b'{"text":"a","index":1}'),
        (Route.GENERATE, 2, b'{"text":"a"}'),
        (Route.GENERATE, 2, b'{"text":"a","index":2}'),
        (Route.GENERATE, 2, b'{"index":"0","text":"a"}'),
        (Route.GENERATE, 2, b'{"text":"a'),
    ],
)
def test_a_payload_of_another_shape_names_its_sample(route: Route, batch: int | None, payload: bytes) -> None:
    merge = StreamMerge(route, 2, batch=batch)
    with pytest.raises(MergeError, match=r"^sample 1: ") as caught:
        merge.feed(1, payload)
    assert caught.value.sample == 1


def test_generate_without_fields_gets_an_index() -> None:
    assert StreamMerge(Route.GENERATE, 2, batch=None).feed(1, b"{ }") == b'data: { "index":1}\n\n'


def test_usage_that_one_sample_lacks_is_not_guessed() -> None:
    merge = StreamMerge(Route.CHAT, 2, batch=None)
    merge.feed(0, _usage("a", 1))
    assert merge.end(0) == b""
    with pytest.raises(MergeError, match=r"sample 1: .*without the usage"):
        merge.end(1)


def test_no_usage_no_event_of_it() -> None:
    merge = StreamMerge(Route.CHAT, 2, batch=None)
    assert merge.end(1) == b""
    assert not merge.ended
    assert merge.end(0) == b"data: " + DONE + b"\n\n"


def test_an_ended_sample_is_over() -> None:
    merge = StreamMerge(Route.CHAT, 2, batch=None)
    merge.end(0)
    with pytest.raises(MergeError, match="ended twice"):
        merge.end(0)
    with pytest.raises(MergeError, match="after the end"):
        merge.feed(0, _chunk("a", 1))


def _chunk(name: str, created: int) -> bytes:
    return (
        f'{{"id":"{name}","object":"chat.completion.chunk","created":{created},"model":"m",'
        '"choices":[{"index":0,"delta":{}}]}'
    ).encode()


def _usage(name: str, created: int) -> bytes:
    return (
        f'{{"id":"{name}","object":"chat.completion.chunk","created":{created},"model":"m","choices":[],'
        '"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'
    ).encode()
