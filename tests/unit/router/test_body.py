"""Bodies: what is refused, what is spliced, and that nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.router.body import Call, Route, Tags, fresh_room, fresh_tags, parse, splice
from plait.router.errors import RouterError


def read(body: Any, route: Route = Route.CHAT, *, max_batch: int = 8) -> Call:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse(raw, route, max_batch=max_batch)


def refusal(body: Any, route: Route = Route.CHAT) -> RouterError:
    with pytest.raises(RouterError) as caught:
        read(body, route)
    assert caught.value.status == 400
    return caught.value


def spliced(call: Call, tags: Tags) -> bytes:
    return b"".join(splice(call, tags, bootstrap_host="10.0.0.1", bootstrap_port=8998))


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"", b"{", b"{}x", b"\xff", b'{"a":NaN}', b"\xef\xbb\xbf{}"])
def test_invalid_json(raw: bytes) -> None:
    assert refusal(raw).code == "invalid_json"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [(b"[]", "a list"), (b'"x"', "a string"), (b"1", "a number"), (b"null", "null"), (b"true", "a b")],
)
def test_json_that_is_no_object(raw: bytes, kind: str) -> None:
    assert kind in refusal(raw).message


@pytest.mark.parametrize(
    "name", ["rid", "bootstrap_room", "bootstrap_host", "bootstrap_port", "bootstrap_pair_key"]
)
def test_fields_of_the_router_are_named(name: str) -> None:
    error = refusal({"messages": [], name: None})
    assert error.param == name
    assert f"'{name}'" in error.message


@pytest.mark.parametrize("n", [0, -1, 129, "2", 2.0, [1], True])
@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
def test_counts_of_samples_that_are_none(route: Route, n: object) -> None:
    assert refusal({"prompt": "x", "n": n}, route).param == "n"


def test_samples_times_prompts_have_a_limit() -> None:
    error = refusal({"prompt": ["a", "b", "c"], "n": 3}, Route.COMPLETIONS)
    assert error.param == "n"
    assert "3 samples of 3 prompts are over 8" in error.message
    error = refusal({"text": "x", "sampling_params": {"n": 9}}, Route.GENERATE)
    assert error.param == "sampling_params.n"


def test_too_many_prompts() -> None:
    error = refusal({"input_ids": [[1]] * 9}, Route.GENERATE)
    assert error.param == "input_ids"
    assert "9" in error.message
    assert "8" in error.message


def test_echoed_prompt_logprobs_are_refused_not_left_out() -> None:
    assert refusal({"prompt": "x", "echo": True, "logprobs": 3}, Route.COMPLETIONS).param == "echo"
    read({"prompt": "x", "echo": True}, Route.COMPLETIONS)
    read({"prompt": "x", "logprobs": 3}, Route.COMPLETIONS)


def test_streamed_prompt_logprobs_are_refused_not_left_out() -> None:
    asked = {"text": "x", "stream": True, "return_logprob": True}
    assert refusal(asked | {"logprob_start_len": 0}, Route.GENERATE).param == "logprob_start_len"
    assert refusal(asked | {"logprob_start_len": [-1, 0]}, Route.GENERATE).param == "logprob_start_len"
    read(asked, Route.GENERATE)
    read(asked | {"logprob_start_len": -1}, Route.GENERATE)


# --- what is seen ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "body", "batch"),
    [
        (Route.CHAT, {"messages": []}, None),
        (Route.CHAT, {"messages": [], "input_ids": [1, 2]}, None),
        (Route.COMPLETIONS, {"prompt": "x"}, None),
        (Route.COMPLETIONS, {"prompt": ["x"]}, 1),
        (Route.COMPLETIONS, {"prompt": ["x", "y"]}, 2),
        (Route.COMPLETIONS, {"prompt": [1, 2, 3]}, None),
        (Route.COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (Route.COMPLETIONS, {"prompt": []}, None),
        (Route.COMPLETIONS, {}, None),
        (Route.GENERATE, {"text": "x"}, None),
        (Route.GENERATE, {"text": ["x", "y", "z"]}, 3),
        (Route.GENERATE, {"input_ids": [1, 2]}, None),
        (Route.GENERATE, {"input_ids": [[1, 2]]}, 1),
        (Route.GENERATE, {"text": None, "input_ids": [[1], [2]]}, 2),
        (Route.GENERATE, {"text": "x", "input_ids": [[1], [2]]}, None),
        (Route.GENERATE, {"input_embeds": [[0.5, 1.0]]}, None),
        (Route.GENERATE, {"input_embeds": [[[0.5]], [[1.0]]]}, 2),
    ],
)
def test_batch_is_counted_as_the_engine_does(route: Route, body: dict[str, Any], batch: int | None) -> None:
    assert read(body, route).batch == batch


@pytest.mark.parametrize(
    ("asked", "wanted"), [({}, False), ({"return_logprob": False}, False), ({"return_logprob": True}, True)]
)
def test_prompt_logprobs_are_asked_for(asked: dict[str, Any], wanted: bool) -> None:
    assert read({"text": "x"} | asked, Route.GENERATE).prompt_logprobs is wanted
    assert read({"text": ["x", "y"], "return_logprob": [False, True]}, Route.GENERATE).prompt_logprobs


@pytest.mark.parametrize(
    ("route", "body", "samples", "legs"),
    [
        (Route.CHAT, {"messages": []}, 1, 1),
        (Route.CHAT, {"messages": [], "n": None}, 1, 1),
        (Route.CHAT, {"messages": [], "n": 3}, 3, 3),
        (Route.COMPLETIONS, {"prompt": ["a", "b"], "n": 3}, 3, 6),
        (Route.COMPLETIONS, {"prompt": ["a", "b"]}, 1, 2),
        (Route.GENERATE, {"text": "x", "sampling_params": {"n": 2}}, 2, 2),
        (Route.GENERATE, {"text": "x", "sampling_params": None}, 1, 1),
    ],
)
def test_samples_are_counted_and_the_body_asks_for_one(
    route: Route, body: dict[str, Any], samples: int, legs: int
) -> None:
    call = read(body, route)
    assert (call.samples, call.legs) == (samples, legs)
    sent = json.loads(call.body)
    one = sent["sampling_params"] if route is Route.GENERATE else sent
    assert (one or {}).get("n") in (None, 1)
    # All else is the client's.
    assert call.fields == body
    if samples == 1:
        assert call.body == json.dumps(body).encode()


@pytest.mark.parametrize(("given", "priority"), [({}, 0), ({"priority": 7}, 7), ({"priority": "high"}, 0)])
def test_priority_is_the_clients_own(given: dict[str, Any], priority: int) -> None:
    assert read({"messages": []} | given).priority == priority


# --- what is spliced ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw", [b"{}", b"{ }", b"\n{\n}\n ", b'{"a":{}}', b'{"a": 1 }', b'{"a":[1,2 ]  }\r\n']
)
def test_splice_adds_to_any_object(raw: bytes) -> None:
    fields = json.loads(spliced(read(raw), Tags("id", (7,), ("id",))))
    assert fields == json.loads(raw) | {
        "bootstrap_host": "10.0.0.1",
        "bootstrap_port": 8998,
        "bootstrap_room": 7,
        "rid": "id",
    }


def test_splice_leaves_every_byte_of_the_client_as_it_was() -> None:
    # What a parse and a write would change: spacing, number forms, big integers, escapes, key order, doubles.
    inner = (
        b'"z" : 1.50e+01 ,\t"a":123456789012345678901234567890, "u": "\\u00e9\\/", "z": {"new_field" : [ ] }'
    )
    body = spliced(read(b"{" + inner + b"}"), fresh_tags(None))
    assert body.startswith(b"{" + inner + b',"bootstrap_host":')


def test_splice_of_a_batch_has_lists() -> None:
    call = read({"prompt": ["a", "b"]}, Route.COMPLETIONS)
    tags = fresh_tags(call.batch)
    fields = json.loads(spliced(call, tags))
    assert fields["bootstrap_room"] == list(tags.rooms)
    assert fields["rid"] == list(tags.rids)
    assert len(tags.rooms) == len(tags.rids) == 2


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=6).filter(lambda k: k not in ("n", "rid")), _JSON, max_size=5),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]),
)
def test_splice_of_any_object_is_that_object_and_the_fields(
    fields: dict[str, Any], separators: tuple[str, str]
) -> None:
    raw = json.dumps(fields, separators=separators).encode()
    sent = json.loads(spliced(read(raw), Tags("id", (7,), ("id",))))
    added = {name: sent.pop(name) for name in ("bootstrap_host", "bootstrap_port", "bootstrap_room", "rid")}
    assert sent == fields
    assert added["bootstrap_room"] == 7


# --- rooms and ids -----------------------------------------------------------------------------------------


def test_ten_thousand_requests_have_ten_thousand_rooms() -> None:
    tags = [fresh_tags(None) for _ in range(9_000)] + [fresh_tags(100) for _ in range(10)]
    rooms = [room for t in tags for room in t.rooms]
    assert len(set(rooms)) == len(rooms) == 10_000
    assert all(0 < room < 2**63 for room in rooms)
    # Random over the whole range, not counted up.
    assert max(rooms) > 2**62


def test_room_is_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.router.body.random_bytes", bytes)
    assert fresh_room() != 0


def test_no_id_of_a_batch_is_a_prefix_of_another() -> None:
    rids = fresh_tags(120).rids
    assert not [(a, b) for a in rids for b in rids if a != b and b.startswith(a)]
