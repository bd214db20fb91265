"""What goes wrong raises the exception of the official client that an application would catch."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from tests.router.conformance import shapes
from tests.router.conformance.engine import Answer, events, refusal
from tests.router.conformance.process import SECRET, Router

pytestmark = pytest.mark.usefixtures("calm")

MESSAGES: Any = [{"role": "user", "content": SECRET}]
ROLE, WORD = shapes.stream("/v1/chat/completions", {"stream": True})[:2]


def _chat(client: openai.OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=MESSAGES, **more)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, openai.BadRequestError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
    ],
)
def test_what_an_engine_refuses(
    client: openai.OpenAI, router: Router, side: str, status: int, expected: type, stream: bool
) -> None:
    guilty = router.prefill if side == "prefill" else router.decode
    name = uuid.uuid4().hex
    with (
        guilty.behaving(refusal(status, "max_tokens is too large: 99")),
        pytest.raises(expected) as raised,
    ):
        _chat(client, stream=stream, user=name)
    error = raised.value
    assert "max_tokens is too large: 99" in error.message
    assert error.type
    # Never tried again: it would be refused again. (A leg of an earlier test may still have come here.)
    assert [p.body["user"] for p in guilty.prompts].count(name) == 1


def test_retry_after_of_an_engine(client: openai.OpenAI, router: Router) -> None:
    busy = router.decode.behaving(refusal(429, "busy", retry_after="3"))
    with busy, pytest.raises(openai.RateLimitError) as raised:
        _chat(client)
    assert raised.value.response.headers["retry-after"] == "3"


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_engine_that_fails(client: openai.OpenAI, router: Router, side: str) -> None:
    guilty = router.prefill if side == "prefill" else router.decode
    failing = guilty.behaving(refusal(500, "out of memory"))
    with failing, pytest.raises(openai.InternalServerError) as raised:
        _chat(client)
    assert raised.value.status_code in (502, 503)
    assert side in raised.value.message


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(events([ROLE, WORD], then="die"), id="dies"),
        pytest.param(events([ROLE, WORD[: len(WORD) // 2]], then="die"), id="dies-inside-an-event"),
        pytest.param(events([ROLE, WORD], then="late"), id="ends-too-soon"),
    ],
)
def test_stream_that_breaks_raises(client: openai.OpenAI, router: Router, broken: Answer) -> None:
    with router.decode.behaving(broken):
        stream = _chat(client, stream=True)
        with pytest.raises(openai.APIError) as raised:
            list(stream)
    # The stream itself said what is wrong: not a broken connection, not a status.
    assert type(raised.value) is openai.APIError
    assert raised.value.message


def test_error_that_an_engine_puts_into_its_stream(client: openai.OpenAI, router: Router) -> None:
    """As stock does it: the error as an event, and [DONE] all the same."""
    said = b'data: {"error":{"message":"boom","type":"InternalServerError","code":500}}\n\n'
    # An error that comes with the first bytes may still be told as a status.
    saying = router.decode.behaving(events([ROLE, WORD, said, shapes.DONE]))
    with saying, pytest.raises(openai.APIError, match="boom"):
        list(_chat(client, stream=True))


def test_words_before_the_break_arrive(client: openai.OpenAI, router: Router) -> None:
    with router.decode.behaving(events([ROLE, WORD], then="die")), _chat(client, stream=True) as stream:
        words = [next(stream).choices[0].delta.content for _ in range(2)]
        with pytest.raises(openai.APIError):
            next(stream)
    assert words == ["", shapes.WORDS[0]]


def test_break_is_the_last_event_and_there_is_no_done(router: Router) -> None:
    with router.decode.behaving(events([ROLE, WORD], then="die")):
        answer = httpx.post(
            router.url + "/v1/chat/completions", json={"messages": MESSAGES, "stream": True}, timeout=20
        )
    *passed, last, rest = answer.text.split("\n\n")
    assert rest == ""
    assert [f"{p}\n\n".encode() for p in passed] == [ROLE, WORD]
    error = httpx.Response(200, text=last.removeprefix("data: ")).json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    assert error["message"]
    assert error["type"] == "server_error"


UNSERVED: dict[str, Callable[[openai.OpenAI], Any]] = {
    "embeddings": lambda c: c.embeddings.create(model="tiny", input="x"),
    "responses": lambda c: c.responses.create(model="tiny", input="x"),
    "moderations": lambda c: c.moderations.create(input="x"),
    "images": lambda c: c.images.generate(prompt="x"),
    "files": lambda c: c.files.list(),
    "batches": lambda c: c.batches.list(),
    "speech": lambda c: c.audio.speech.create(model="tiny", input="x", voice="alloy"),
    "transcriptions": lambda c: c.audio.transcriptions.create(model="tiny", file=b"x"),
    "fine_tuning": lambda c: c.fine_tuning.jobs.list(),
    "stored": lambda c: c.chat.completions.list(),
    "delete": lambda c: c.models.delete("tiny"),
}


@pytest.mark.parametrize("name", UNSERVED)
def test_what_is_not_served_is_not_found(client: openai.OpenAI, router: Router, name: str) -> None:
    # Listing stored chats and deleting a model are other methods of paths that exist.
    other_method = name in ("stored", "delete")
    with pytest.raises(openai.APIStatusError if other_method else openai.NotFoundError) as raised:
        UNSERVED[name](client)
    assert raised.value.status_code == (405 if other_method else 404)
    assert raised.value.type == "invalid_request_error"
    assert [e.asked for e in router.engines] == [0, 0]


def test_unknown_model_is_not_found(client: openai.OpenAI, router: Router) -> None:
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("unknown")


def test_field_of_the_router(client: openai.OpenAI, router: Router) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        _chat(client, extra_body={"bootstrap_room": 5})
    assert raised.value.param == "bootstrap_room"
    assert [e.asked for e in router.engines] == [0, 0]


def test_request_id_out_and_in(client: openai.OpenAI, router: Router) -> None:
    first = client.chat.completions.with_raw_response.create(model="tiny", messages=MESSAGES)
    second = client.chat.completions.with_raw_response.create(model="tiny", messages=MESSAGES)
    assert first.request_id
    assert first.request_id != second.request_id
    own = client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, extra_headers={"x-request-id": "trace-me-17"}
    )
    assert own.headers["x-request-id"] == "trace-me-17"
    assert own.parse().choices[0].message.content == "".join(shapes.WORDS)
    for engine in router.engines:
        assert engine.prompts[-1].header("x-request-id") == "trace-me-17"
        # The engine's own id stays the router's: two requests of one id must not meet in an engine.
        assert engine.prompts[-1].body["rid"] != "trace-me-17"


def test_request_id_of_a_stream_and_of_an_error(client: openai.OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(
        model="tiny", messages=MESSAGES, stream=True, extra_headers={"x-request-id": "trace-me-18"}
    ) as response:
        assert response.headers["x-request-id"] == "trace-me-18"
        assert response.headers["content-type"].startswith("text/event-stream")
    with pytest.raises(openai.BadRequestError) as raised:
        _chat(client, extra_body={"rid": "mine"}, extra_headers={"x-request-id": "trace-me-19"})
    assert raised.value.request_id == "trace-me-19"


def test_errors_have_a_request_id_of_the_routers_too(client: openai.OpenAI, router: Router) -> None:
    ids = []
    for more in ({"extra_body": {"rid": "mine"}}, {"extra_body": {"n": 0}}):
        with pytest.raises(openai.BadRequestError) as raised:
            _chat(client, **more)
        ids.append(raised.value.request_id)
    with (
        router.decode.behaving(refusal(422, "no")),
        pytest.raises(openai.UnprocessableEntityError) as refused,
    ):
        _chat(client)
    ids.append(refused.value.request_id)
    assert all(ids)
    assert len(set(ids)) == 3


def test_headers_of_the_client(client: openai.OpenAI, router: Router) -> None:
    _chat(client, extra_headers={"x-tenant": "blue", "te": "trailers", "proxy-authorization": "Basic eA=="})
    for engine in router.engines:
        (seen,) = engine.prompts
        assert seen.header("x-tenant") == "blue"
        assert seen.header("user-agent") == f"OpenAI/Python {openai.__version__}"
        assert seen.header("host") == engine.url.removeprefix("http://")
        for name in ("authorization", "te", "proxy-authorization"):
            assert seen.header(name) is None
