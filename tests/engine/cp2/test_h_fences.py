"""No page is reused before its transfer has ended, and a failed transfer fails its own room only."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest
from harness.ask import ask_pair, prompt
from harness.engines import Engine

pytestmark = pytest.mark.stack


class Legs:
    """Both legs of one request, under way."""

    def __init__(self, cp2, ids: list[int], *, room: int) -> None:
        self._engines = {"prefill": cp2.shared, "decode": cp2.decode}
        self.rid = f"legs-{room}"
        self.answers: dict[str, Any] = {}
        body = {
            "input_ids": ids,
            "rid": self.rid,
            "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True},
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": cp2.shared.bootstrap_port,
            "bootstrap_room": room,
        }
        self._threads = [
            threading.Thread(target=self._leg, args=(name, engine, body))
            for name, engine in self._engines.items()
        ]
        for thread in self._threads:
            thread.start()

    def _leg(self, name: str, engine: Engine, body: dict[str, Any]) -> None:
        try:
            self.answers[name] = httpx.post(f"{engine.url}/generate", json=body, timeout=60)
        except httpx.HTTPError as error:
            self.answers[name] = error

    def abort(self) -> None:
        for engine in self._engines.values():
            httpx.post(f"{engine.url}/abort_request", json={"rid": self.rid}, timeout=10)

    def join(self, *, within_s: float) -> None:
        deadline = time.time() + within_s
        for thread in self._threads:
            thread.join(timeout=max(0.1, deadline - time.time()))
            assert not thread.is_alive(), "a leg hangs"


def in_flight(engine: Engine) -> int:
    return sum(rank["pages"]["in_flight"] for rank in engine.status()["ranks"])


def until(condition, *, within_s: float, what: str) -> float:
    """Seconds until `condition()` held."""
    began = time.time()
    while not condition():
        assert time.time() - began < within_s, what
        time.sleep(0.03)
    return time.time() - began


def test_abort_while_a_rank_sends_holds_the_pages(cp2) -> None:
    """Rank 1 is in the middle of a slow send when both legs are aborted: prefill keeps the pages until that
    send has ended, decode keeps its own until every rank has said so; then all are free."""
    cp2.fault.write_text("slow-send")
    idle_decode = cp2.decode.ranks()[0]["pages"]["free"]
    legs = Legs(cp2, prompt(250, 1), room=51_001)
    until(lambda: in_flight(cp2.shared) > 0, within_s=20, what="nothing went in flight")
    time.sleep(0.3)
    legs.abort()
    time.sleep(1.2)
    assert in_flight(cp2.shared) > 0, "pages were released under a running send"
    assert cp2.decode.ranks()[0]["pages"]["free"] < idle_decode, "decode released pages that are written"
    legs.join(within_s=20)
    cp2.fault.unlink()
    until(lambda: in_flight(cp2.shared) == 0, within_s=10, what="pages stay in flight")
    until(
        lambda: cp2.decode.status()["ranks"][0]["pages"]["free"] == idle_decode,
        within_s=10,
        what="decode keeps pages of an aborted request",
    )
    for rank in cp2.shared.account():
        assert rank["faults"] == []
    assert len(ask_pair(cp2.shared, cp2.decode, [prompt(250, 2)], new=2)[0].decode.ids) == 2


def test_failed_send_fails_its_room_only(cp2) -> None:
    """Rank 1's send fails: both legs get an error at once, and the next request is served."""
    cp2.fault.write_text("fail-send")
    legs = Legs(cp2, prompt(250, 3), room=51_002)
    legs.join(within_s=15)
    assert {name: answer.status_code >= 400 for name, answer in legs.answers.items()} == {
        "prefill": True,
        "decode": True,
    }
    cp2.fault.unlink()
    cp2.stack.freed(within_s=2)
    assert cp2.shared.ranks()[1]["transfer"]["failures"] > 0
    assert len(ask_pair(cp2.shared, cp2.decode, [prompt(250, 4)], new=2)[0].decode.ids) == 2


def test_session_is_refused(cp2) -> None:
    answer = httpx.post(f"{cp2.shared.url}/open_session", json={"capacity_of_str_len": 1000}, timeout=10)
    assert answer.status_code == 400
    assert "sessions are refused" in answer.text
