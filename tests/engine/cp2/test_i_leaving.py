"""A client that leaves, at each phase of its request: both engines are free again within 2 s, accounts right.

Two things are longer than that where they have begun, since no engine can stop them: the forward of a chunk,
and the send of a block of pages. Their tests give 2 s from their end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from harness.ask import prompt
from harness.held import Held
from harness.leaving import Client, held, seconds_to_free, until
from harness.router import Router, router

pytestmark = pytest.mark.stack

BEGIN_S = 30.0
"""For a phase to be reached: a busy machine is slow."""
FREE_S = 2.0
SEND_S = 3.0
"""Of the fault `slow-send`."""
CHUNK = 192
REPEATS_S = 3.0
"""An engine forgets an abort of a request that has not entered yet, so the router repeats it for so long."""


@pytest.fixture(scope="module")
def narrow(started, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A router with one request at a time per engine, so that a second one waits in its line."""
    with router(
        "narrow",
        *("--worker-limit", "1"),
        prefill=started.shared,
        decode=started.decode,
        folder=tmp_path_factory.mktemp("narrow"),
    ) as running:
        yield running


class Scene:
    """Requests through `narrow`, and what becomes of the engines when their client leaves."""

    def __init__(self, cp2, narrow: Router, capsys: pytest.CaptureFixture[str]) -> None:
        self.cp2 = cp2
        self.router = narrow
        self._capsys = capsys
        self._aborts = narrow.aborts()

    def ask(self, tokens: int, seed: int, *, stream: bool = True, new: int = 100) -> Client:
        """Send a prompt of `tokens` tokens that no other test has; `new` tokens are wanted."""
        body: dict[str, Any] = {"model": "tiny", "prompt": prompt(tokens, seed), "max_tokens": new}
        body |= {"temperature": 0, "ignore_eos": True, "stream": stream}
        return Client(self.router.url, "/v1/completions", body)

    def chunks(self) -> int:
        """Chunks that prefill has begun so far."""
        return len(self.cp2.shared.batches())

    def leave(self, client: Client, phase: str, *, held_by: set[str], within_s: float = FREE_S) -> None:
        """The client leaves; both engines have to be free `within_s` seconds later.

        `held_by`: the sides that have something of the request until then. The router tells those with an
        open leg, and no other, to abort: they are the same.
        """
        sides = {"prefill": self.cp2.shared, "decode": self.cp2.decode}
        assert {side for side, engine in sides.items() if held(engine)} == held_by, f"it is not {phase}"
        client.leave()
        left = time.monotonic()
        took = seconds_to_free(self.cp2.shared, self.cp2.decode, within_s=within_s)
        time.sleep(max(0.0, left + REPEATS_S - time.monotonic()))
        aborts = self.router.aborts()
        assert {side for side in sides if aborts[side] > self._aborts[side]} == held_by, "told to abort"
        with self._capsys.disabled():
            print(f"\n  left {phase}: free after {took:.2f} s", end="")


@pytest.fixture
def scene(cp2, narrow, capsys) -> Scene:
    return Scene(cp2, narrow, capsys)


def test_in_the_routers_line(scene) -> None:
    """The engines never hear of it, and the request in front is not disturbed."""
    first = scene.ask(60, 9500, new=3000)
    first.events(2)
    chunks = scene.chunks()
    second = scene.ask(200, 9501)
    until(lambda: scene.router.metric("plait_router_queued") == 1, within_s=5, what="it does not wait")
    second.leave()
    until(lambda: scene.router.metric("plait_router_queued") == 0, within_s=FREE_S, what="it waits on")
    first.events(5)
    scene.leave(first, "while another waited", held_by={"decode"})
    assert scene.chunks() == chunks, "prefill began what nobody waits for"


def test_before_prefill_has_begun(scene) -> None:
    """Prefill has it in its queue, and decode has pages for it."""
    chunks = scene.chunks()
    with Held(scene.cp2.shared) as engine:
        client = scene.ask(700, 9510)
        engine.wait_for(1, within_s=BEGIN_S)
        scene.leave(client, "before prefill", held_by={"prefill", "decode"})
    assert scene.chunks() == chunks, "prefill began what nobody waits for"


def test_between_prefills_chunks(scene) -> None:
    """The rest of the chunks is not computed. The one whose forward has begun is: no engine can stop that."""
    before = scene.chunks()
    client = scene.ask(3900, 9520)
    times = []
    for count in (2, 3):
        until(lambda n=count: scene.chunks() >= before + n, within_s=BEGIN_S, what="prefill does not go on")
        times.append(time.monotonic())
    scene.leave(
        client,
        "between chunks",
        held_by={"prefill", "decode"},
        within_s=FREE_S + (times[1] - times[0]),
    )
    assert scene.chunks() < before + 3900 // CHUNK, "all of it was computed"


def test_during_the_transfer(scene) -> None:
    """Rank 1 has begun a slow send. Its memory is being read, so its pages stay until the send has ended, and
    decode's until every rank has said that it writes no more: no engine can call a block back. What is left
    of the request is not sent: that would take another 3 s."""
    scene.cp2.fault.write_text("slow-send")
    client = scene.ask(250, 9530)
    until(
        lambda: any(rank["pages"]["in_flight"] for rank in scene.cp2.shared.status()["ranks"]),
        within_s=BEGIN_S,
        what="nothing goes in flight",
    )
    scene.leave(client, "during a send of 3 s", held_by={"prefill", "decode"}, within_s=SEND_S + FREE_S)


def test_before_decodes_first_token(scene) -> None:
    """Decode has the pages but does not begin; prefill is done with the request."""
    with Held(scene.cp2.decode) as engine:
        client = scene.ask(300, 9540)
        engine.wait_for(1, within_s=BEGIN_S)
        until(lambda: not held(scene.cp2.shared), within_s=5, what="prefill is not done")
        scene.leave(client, "before decode's first token", held_by={"decode"})


def test_in_the_middle_of_a_stream(scene) -> None:
    client = scene.ask(300, 9550, new=3000)
    client.events(5)
    scene.leave(client, "in the middle of a stream", held_by={"decode"})


def test_in_the_middle_of_a_whole_answer(scene) -> None:
    """Nothing has been answered yet, so nothing but the closed connection tells that the client is gone."""
    client = scene.ask(300, 9560, stream=False, new=3000)
    until(
        lambda: any(rank["running"] for rank in scene.cp2.decode.status()["ranks"]),
        within_s=BEGIN_S,
        what="decode does not generate",
    )
    scene.leave(client, "in the middle of a whole answer", held_by={"decode"})
