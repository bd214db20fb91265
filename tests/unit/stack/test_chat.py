"""A streamed chat is read piece by piece, its errors are told, and the stack stays watched."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator

import pytest

from plait.stack.chat import ChatError, read_events, stream_chat


def _event(text: str) -> bytes:
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n".encode()


USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"


class _Router(http.server.ThreadingHTTPServer):
    status = 200
    chunks: tuple[bytes, ...] = ()
    pause_s = 0.0
    asked: dict[str, object] = {}  # noqa: RUF012 - one server per test


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        router = self.server
        assert isinstance(router, _Router)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        router.asked = {"path": self.path, **json.loads(body)}
        self.send_response(router.status)
        self.end_headers()
        for chunk in router.chunks:
            self.wfile.write(chunk)
            self.wfile.flush()
            time.sleep(router.pause_s)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def router() -> Iterator[_Router]:
    with _Router(("127.0.0.1", 0), _Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def _ask(router: _Router, watch: object = lambda: None) -> list[str]:
    url = f"http://127.0.0.1:{router.server_port}"
    messages = [{"role": "user", "content": "Hello"}]
    pieces = stream_chat(url, messages, model="tiny", max_tokens=2, watch=watch)  # type: ignore[arg-type]
    return [piece.text if piece.usage is None else repr(dict(piece.usage)) for piece in pieces]


def test_text_then_usage(router: _Router) -> None:
    router.chunks = (_event("one "), _event("two"), USAGE, DONE)
    assert _ask(router) == ["one ", "two", "{'prompt_tokens': 7, 'completion_tokens': 2}"]
    assert router.asked["path"] == "/v1/chat/completions"
    assert router.asked["stream"] is True
    assert router.asked["messages"] == [{"role": "user", "content": "Hello"}]


def test_a_refusal_is_told_with_its_body(router: _Router) -> None:
    router.status, router.chunks = 400, (b'{"error": {"message": "too long"}}',)
    with pytest.raises(ChatError, match=r"HTTP 400: .*too long"):
        _ask(router)


def test_an_error_event_ends_the_chat(router: _Router) -> None:
    router.chunks = (_event("one"), b'data: {"error": {"message": "decode is gone"}}\n\n')
    with pytest.raises(ChatError, match="decode is gone"):
        _ask(router)


def test_a_stream_without_its_end_is_an_error(router: _Router) -> None:
    router.chunks = (_event("one"),)
    with pytest.raises(ChatError, match="ended before it was complete"):
        _ask(router)


def test_what_the_watch_raises_ends_the_wait_at_once(router: _Router) -> None:
    router.chunks, router.pause_s = (_event("one"), DONE), 2.0

    def watch() -> None:
        raise RuntimeError("a child died")

    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="a child died"):
        _ask(router, watch)
    assert time.monotonic() - begin < 1.5


def test_the_death_of_the_stack_is_told_rather_than_its_consequence(router: _Router) -> None:
    router.chunks = (_event("one"),)

    def watch() -> None:
        raise RuntimeError("prefill died")

    with pytest.raises(RuntimeError, match="prefill died"):
        _ask(router, watch)


def test_comments_and_blank_lines_are_skipped() -> None:
    lines = [": keep-alive", "", 'data: {"choices": []}', "data: [DONE]", "data: not read"]
    assert list(read_events(iter(lines))) == [{"choices": []}]
