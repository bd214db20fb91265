"""Bytes in, bytes out: what the router adds is all that differs, in a request and in an answer."""

from __future__ import annotations

import json
import random
import string
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.router.conformance import shapes
from tests.router.conformance.engine import Answer, events
from tests.router.conformance.process import Router
from tests.router.conformance.wire import Reply, Wire, request

CHAT = "/v1/chat/completions"
ADDED = {"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"}

ODD_BODIES = {
    "big integers": b'{"messages":[],"seed":1180591620717411303424,"x":{"1":-1180591620717411303424}}',
    "digits": b'{"messages":[],"x":[1.0,1.00,1e300,1E+2,-0,-0.0,0.1000000000000000055511151231257827]}',
    "key order": b'{"z":1,"messages":[],"a":2,"m":3,"Z":4,"0":5}',
    "white space": b'\r\n\t {\t"messages" :\n[ ]\r ,  "x"\t:\t[ 1 ,\n2 ]\n\n}\n \t\r\n',
    "duplicate keys": b'{"messages":[],"top_k":1,"top_k":2,"x":{"a":1,"a":2}}',
    "escapes": rb'{"messages":[],"x":"\u00fc\/\ud83d\ude85\"\\\n","\u0078y":"\u0000"}',
    "unicode": '{"messages":[{"content":"ü東京🚅\u2028\ufeff"}],"größe":"µ"}'.encode(),
    "owned names elsewhere": b'{"messages":[{"rid":1,"bootstrap_room":2}],"x":{"rid":{}},"rid_":1,"y":"rid"}',
    "deep": b'{"messages":[],"x":' + b"[" * 60 + b"]" * 60 + b"}",
    "empty names": b'{"messages":[],"":"","  ":{}}',
    "braces in strings": b'{"messages":[],"x":"}\\"}{","y":"{"}',
}


@pytest.mark.parametrize("name", ODD_BODIES)
def test_odd_bodies_reach_both_engines_byte_for_byte(router: Router, name: str) -> None:
    assert _post(router, CHAT, ODD_BODIES[name]).status == 200
    _assert_only_added(router, ODD_BODIES[name], ADDED)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/generate"])
def test_every_route_forwards_what_it_does_not_know(router: Router, path: str) -> None:
    body = b'{ "future" : 1180591620717411303424 , "prompt":"x","text":"x","messages":[] }'
    assert _post(router, path, body).status == 200
    _assert_only_added(router, body, ADDED)
    assert all(e.prompts[0].path == path for e in router.engines)


def test_empty_object(router: Router) -> None:
    """What is missing is for the engine to say."""
    for body in (b"{}", b"{ \n }"):
        assert _post(router, CHAT, body).status == 200
        for engine in router.engines:
            assert set(engine.prompts[-1].body) == ADDED


def test_samples_change_n_and_nothing_else(router: Router) -> None:
    body = b'{"messages" : [], "x":[{"n":3}], "n" : 3 ,"seed":1180591620717411303424, "y":"\\"n\\":3"}'
    assert _post(router, CHAT, body).status == 200
    one = body.replace(b'"n" : 3', b'"n" : 1')
    for engine in router.engines:
        assert len(engine.prompts) == 3
        for seen in engine.prompts:
            assert set(_added(seen.raw, one)) == ADDED


def test_samples_of_generate_change_n_and_nothing_else(router: Router) -> None:
    body = b'{"text":"n", "sampling_params" : {"temperature":0.10, "n" :2,"seed":1180591620717411303424}}'
    answer = _post(router, "/generate", body)
    assert answer.status == 200
    assert len(answer.json) == 2
    one = body.replace(b'"n" :2', b'"n" :1')
    for engine in router.engines:
        assert len(engine.prompts) == 2
        for seen in engine.prompts:
            assert set(_added(seen.raw, one)) == ADDED


def test_request_in_small_pieces_and_chunks(router: Router) -> None:
    body = ODD_BODIES["unicode"]
    pieces = [body[i : i + 3] for i in range(0, len(body), 3)]
    chunked = b"".join(b"%X;ext=1\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\ntrailer: x\r\n\r\n"
    head = request("POST", CHAT, headers={"transfer-encoding": "chunked", "content-type": "application/json"})
    with Wire(router.address) as wire:
        for byte in head + chunked:
            wire.send(bytes([byte]))
        assert wire.reply().status == 200
    _assert_only_added(router, body, ADDED)


@pytest.mark.parametrize("sent", [None, "application/json; charset=utf-8", "Application/JSON"])
def test_content_type_is_json(router: Router, sent: str | None) -> None:
    """A request without one is taken for the JSON that it is; the engine is told so."""
    whole = request("POST", CHAT, b'{"messages":[]}', headers={"content-type": sent or "x"})
    with Wire(router.address) as wire:
        wire.send(whole if sent else whole.replace(b"content-type: x\r\n", b""))
        assert wire.reply().status == 200
    for engine in router.engines:
        told = engine.prompts[0].header("content-type") or ""
        assert told.lower().partition(";")[0] == "application/json"


def test_expect_continue(router: Router) -> None:
    body = ODD_BODIES["unicode"]
    with Wire(router.address) as wire:
        wire.send(request("POST", CHAT, body, headers={"expect": "100-continue"})[: -len(body)])
        wire.send(body)
        assert wire.reply().status == 200
    _assert_only_added(router, body, ADDED)
    assert all(e.prompts[0].header("expect") is None for e in router.engines)


def test_pipelined_requests_are_answered_in_order(router: Router) -> None:
    bodies = [json.dumps({"prompt": f"number {i}"}).encode() for i in range(4)]
    with Wire(router.address) as wire:
        wire.send(b"".join(request("POST", "/v1/completions", body) for body in bodies))
        texts = [wire.reply().json["choices"][0]["text"] for _ in bodies]
    assert texts == [f"<number {i}>" for i in range(4)]


LONG = [(32 << 10) - 1, 32 << 10, (32 << 10) + 1, 200_000, 1 << 20]


@pytest.mark.parametrize("size", LONG)
@pytest.mark.parametrize("seed", range(3))
def test_long_body_in_pieces_and_what_comes_behind_it(router: Router, size: int, seed: int) -> None:
    """A long body is not read through the parser; what follows it on the connection is the next request."""
    dice = random.Random(f"{size} {seed}")
    body = _long(dice, size)
    short = b'{"prompt":"behind"}'
    whole = request("POST", "/v1/completions", body) + request("POST", "/v1/completions", short)
    at = 0
    with Wire(router.address) as wire:
        while at < len(whole):
            piece = dice.choice((1, 100, 5_000, size // 7, size // 2, size))
            wire.send(whole[at : at + piece])
            at += piece
            time.sleep(dice.choice((0.0, 0.0, 0.003)))
        assert wire.reply().status == 200
        assert wire.reply().json["choices"][0]["text"] == "<behind>"
        # And once more, whole.
        wire.send(request("POST", "/v1/completions", body))
        assert wire.reply().status == 200
    for engine in router.engines:
        assert len(engine.prompts) == 3
        for seen, sent in zip(engine.prompts, (body, short, body), strict=True):
            assert set(_added(seen.raw, sent)) == ADDED


def test_long_samples_change_n_and_nothing_else(router: Router) -> None:
    body = _long(random.Random(7), 100_000)[:-1] + b', "n" : 2 }'
    with Wire(router.address) as wire:
        whole = request("POST", "/v1/completions", body)
        for at in range(0, len(whole), 30_000):
            wire.send(whole[at : at + 30_000])
            time.sleep(0.003)
        assert wire.reply().status == 200
    one = body.replace(b'"n" : 2', b'"n" : 1')
    for engine in router.engines:
        assert len(engine.prompts) == 2
        for seen in engine.prompts:
            assert set(_added(seen.raw, one)) == ADDED


def _long(dice: random.Random, size: int) -> bytes:
    """A body of `size` bytes in which no two parts are alike."""
    head, tail = b'{"prompt":"', b'"}'
    return head + dice.randbytes(size).hex()[: size - len(head) - len(tail)].encode() + tail


def test_http_1_0(router: Router) -> None:
    body = b'{"prompt":"x"}'
    with Wire(router.address) as wire:
        wire.send(request("POST", "/v1/completions", body).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        answer = wire.reply()
        assert answer.status == 200
        assert answer.json["choices"][0]["text"] == "<x>"
        assert wire.closed()


def test_absolute_target(router: Router) -> None:
    with Wire(router.address) as wire:
        wire.send(request("POST", f"http://router.test{CHAT}", b'{"messages":[]}'))
        assert wire.reply().status == 200


def test_answer_is_the_decode_engines_byte_for_byte(router: Router) -> None:
    odd = '{ "id" : "x",\t"choices":[ ], "big": 1180591620717411303424, "u":"ü\\u00fc", "f":1.00 }\n'.encode()
    headers = (("content-type", "application/json"), ("x-engine", "a"), ("x-engine", "b"))
    with router.decode.behaving(Answer([odd], headers=headers)):
        answer = _post(router, CHAT, b'{"messages":[]}')
    assert answer.body == odd
    assert answer.headers["x-engine"] == "b"


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(shapes.stream(CHAT, {"messages": []}), id="stock"),
        pytest.param([b": ping\n\ndata: {}\n\n: ping\n\n", b"data: [DONE]\n\n"], id="comments"),
        pytest.param(
            [b'data: {"x":"', "ü".encode()[:1], "ü".encode()[1:], b'"}\n', b"\ndata: [DO", b"NE]\n\n"]
        ),
        pytest.param([b'data:{"x": 1}\r\n\r\ndata: [DONE]\r\n\r\n'], id="crlf"),
        pytest.param([b'data: {"x": 1}\n\ndata: [DONE]\n\n\n\n: bye\n\n'], id="more-after-done"),
    ],
)
@pytest.mark.usefixtures("calm")
def test_stream_is_the_decode_engines_byte_for_byte(router: Router, parts: list[bytes]) -> None:
    with router.decode.behaving(events(parts)):
        answer = _post(router, CHAT, b'{"messages":[],"stream":true}')
    assert answer.status == 200
    assert answer.body == b"".join(parts)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


def test_hop_headers_of_an_engine_stay(router: Router) -> None:
    hop = (("content-type", "application/json"), ("keep-alive", "timeout=1"), ("connection", "x-private"))
    with router.decode.behaving(Answer([b"{}"], headers=(*hop, ("x-private", "1")))):
        answer = _post(router, CHAT, b'{"messages":[]}')
    assert "keep-alive" not in answer.headers
    assert "x-private" not in answer.headers


# --- any JSON object at all, with any white space ---

_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
_leaf = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | _text
_value = st.recursive(
    _leaf.filter(lambda v: v not in (float("inf"), float("-inf"))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)
# Names that mean something to the router are tested above, one by one.
_name = st.text(string.ascii_lowercase + "üß東🚅_", max_size=6).map(lambda name: "x" + name)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    fields=st.dictionaries(_name, _value, max_size=4),
    ascii_only=st.booleans(),
    gap=st.sampled_from([(",", ":"), (" ,\n", "\t: "), (",\r\n ", ":")]),
    ends=st.tuples(st.sampled_from(["", " ", "\n\t"]), st.sampled_from(["", "\r\n", " \n"])),
)
def test_any_object(
    router: Router, fields: dict[str, Any], ascii_only: bool, gap: tuple[str, str], ends: tuple[str, str]
) -> None:
    text = json.dumps(fields, ensure_ascii=ascii_only, separators=gap)
    body = (ends[0] + text + ends[1]).encode()
    for engine in router.engines:
        engine.prompts.clear()
    assert _post(router, CHAT, body).status == 200
    _assert_only_added(router, body, ADDED)


def _post(router: Router, path: str, body: bytes) -> Reply:
    with Wire(router.address) as wire:
        wire.send(request("POST", path, body))
        return wire.reply()


def _assert_only_added(router: Router, body: bytes, names: set[str]) -> None:
    for engine in router.engines:
        (seen,) = engine.prompts
        assert set(_added(seen.raw, body)) == names
        assert seen.header("content-type") == "application/json"


def _added(raw: bytes, body: bytes) -> dict[str, Any]:
    """The fields in `raw` that came between two parts of `body`, and nothing else did."""
    blank = b" \t\r\n"
    raw, body = raw.strip(blank), body.strip(blank)
    # Behind the last field, or in front of the first: a field of an object stands between its own two.
    head, tail = body[:-1].rstrip(blank), body[1:].lstrip(blank)
    if raw.startswith(head):
        inside = raw[len(head) : -1]
    else:
        assert raw.endswith(tail), (raw, body)
        inside = raw[1 : len(raw) - len(tail)]
    value = json.loads(b"{" + inside.strip(blank + b",") + b"}")
    assert isinstance(value, dict)
    return value
