"""One streamed chat through the router, read in a thread so that the stack stays watched meanwhile."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import httpx

_DEADLINE = httpx.Timeout(10.0, read=300.0)


class ChatError(Exception):
    """The answer broke off or was refused; the message is the router's own."""


class Piece(NamedTuple):
    """What came: `text` as it streams, then once `usage` (prompt and answer tokens) at the end.

    `seconds`: since the request was sent.
    """

    text: str
    seconds: float
    usage: Mapping[str, int] | None = None


def read_events(lines: Iterator[str]) -> Iterator[Mapping[str, object]]:
    """The JSON of each `data:` line up to `[DONE]`; ChatError for an error event, or without `[DONE]`."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise ChatError(str(event["error"].get("message", event["error"])))
        yield event
    raise ChatError("the stream ended before it was complete")


def _pieces(url: str, body: Mapping[str, object]) -> Iterator[Piece]:
    begin = time.monotonic()
    # trust_env off: a proxy has no business between this machine and itself.
    with (
        httpx.Client(timeout=_DEADLINE, trust_env=False) as client,
        client.stream("POST", f"{url}/v1/chat/completions", json=body) as response,
    ):
        if response.status_code != 200:
            raise ChatError(f"HTTP {response.status_code}: {response.read().decode('utf-8', 'replace')}")
        for event in read_events(response.iter_lines()):
            after = time.monotonic() - begin
            choices = event.get("choices") or [{}]
            assert isinstance(choices, list)
            usage = event.get("usage")
            yield Piece(
                text=choices[0].get("delta", {}).get("content") or "",
                seconds=after,
                usage=usage if isinstance(usage, dict) else None,
            )


def stream_chat(
    url: str,
    messages: Sequence[Mapping[str, str]],
    *,
    model: str,
    max_tokens: int,
    watch: Callable[[], None],
) -> Iterator[Piece]:
    """Pieces as they come; calls `watch` a few times a second while it waits, and lets it raise.

    Raises ChatError when the answer is refused or breaks off.
    """
    body = {
        "model": model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    arrived: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()

    def read() -> None:
        try:
            for piece in _pieces(url, body):
                arrived.put(piece)
            arrived.put(None)
        except httpx.HTTPError as error:
            arrived.put(ChatError(f"{type(error).__name__}: {error}"))
        except BaseException as error:  # handed over, and raised where the answer is awaited
            arrived.put(error)

    threading.Thread(target=read, name="chat", daemon=True).start()
    while True:
        try:
            item = arrived.get(timeout=0.2)
        except queue.Empty:
            watch()
            continue
        if item is None:
            return
        if isinstance(item, BaseException):
            watch()  # if the stack died, that is the cause to tell
            raise item
        yield item
