"""The line between admin and serving processes: whoever comes late, leaves or dies, the list arrives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
import pytest

from plait.router.directory import Desired
from plait.router.discovery.target import Target
from plait.router.processes import channel
from plait.router.processes.channel import Hub, follow
from plait.router.report import Report

P = Target.prefill("http://p:1", bootstrap_port=8998)
D = Target.decode("http://d:1")
ONE, TWO = Desired((P, D)), Desired((P, D), (D.url,))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_RECONNECT_SECONDS", 0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


class Follower:
    """A serving process's end."""

    def __init__(self, path: str, pid: int) -> None:
        self.pid = pid
        self.applied: list[Desired] = []
        self.in_flight = 0
        self.task = asyncio.create_task(follow(path, pid=pid, apply=self.applied.append, report=self.report))

    def report(self) -> Report:
        rows = [("plait_router_retries", ("prefill", "broken"), [float(self.pid)])]
        return Report(pid=self.pid, in_flight=self.in_flight, queued=0, legs={P.url: 1}, tallies=rows)

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Room:
    """A hub and its followers."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.hub = Hub()
        self.followers: list[Follower] = []

    async def follower(self) -> Follower:
        made = Follower(self.path, 100 + len(self.followers))
        self.followers.append(made)
        await until(lambda: any(p.pid == made.pid and p.applied >= 0 for p in self.hub._peers))
        return made

    async def another_hub(self) -> None:
        """The admin process dies, and a new one comes."""
        await self.hub.close()
        self.hub = Hub()
        await self.hub.open(self.path)


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    made = Room(str(tmp_path / "control.sock"))
    await made.hub.open(made.path)
    yield made
    for follower in made.followers:
        await follower.leave()
    await made.hub.close()


async def test_list_reaches_all_and_is_settled(room: Room) -> None:
    followers = [await room.follower() for _ in range(3)]
    room.hub.tell(ONE)
    assert await room.hub.settle() == []
    assert [f.applied for f in followers] == [[ONE]] * 3
    room.hub.tell(TWO)
    assert await room.hub.settle() == []
    assert [f.applied[-1] for f in followers] == [TWO] * 3


async def test_list_that_was_never_told_is_none(room: Room) -> None:
    """A hub whose source has not spoken yet must not take away what a process has."""
    follower = await room.follower()
    assert follower.applied == []
    assert await room.hub.settle() == []


async def test_late_peer_gets_the_last_list(room: Room) -> None:
    for desired in (ONE, TWO):
        room.hub.tell(desired)
    follower = await room.follower()
    assert follower.applied == [TWO]


async def test_peer_may_come_before_the_hub(tmp_path: Path) -> None:
    room = Room(str(tmp_path / "control.sock"))
    follower = Follower(room.path, 1)
    await asyncio.sleep(0.05)
    await room.hub.open(room.path)
    room.hub.tell(ONE)
    await until(lambda: follower.applied == [ONE])
    await follower.leave()
    await room.hub.close()


async def test_new_hub_takes_the_old_ones_place(room: Room) -> None:
    follower = await room.follower()
    room.hub.tell(ONE)
    assert await room.hub.settle() == []
    await room.another_hub()
    await until(lambda: len(room.hub._peers) == 1)
    # What was applied stays in force until the new one knows better.
    assert follower.applied == [ONE]
    room.hub.tell(TWO)
    assert await room.hub.settle() == []
    assert follower.applied == [ONE, TWO]


async def test_hub_that_dies_within_a_line_is_followed_again(room: Room) -> None:
    await room.hub.close()
    torn = asyncio.Event()

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"seq": 7, "desi')
        writer.close()
        torn.set()

    server = await asyncio.start_unix_server(die, room.path)
    follower = Follower(room.path, 1)
    room.followers.append(follower)
    await asyncio.wait_for(torn.wait(), 5)
    server.close()
    room.hub = Hub()
    await room.hub.open(room.path)
    room.hub.tell(ONE)
    await until(lambda: follower.applied == [ONE])


async def test_reports_of_all_by_pid(room: Room) -> None:
    followers = [await room.follower() for _ in range(3)]
    for number, follower in enumerate(followers):
        follower.in_flight = number
    found = await room.hub.ask()
    assert [(r.pid, r.in_flight, dict(r.legs)) for r in found] == [(100 + n, n, {P.url: 1}) for n in range(3)]
    followers[1].in_flight = 7
    assert [r.in_flight for r in await room.hub.ask()] == [0, 7, 2], "asked for fresh"


async def test_asking_at_once_gives_everybody_all(room: Room) -> None:
    for _ in range(2):
        await room.follower()
    answers = await asyncio.gather(*(room.hub.ask() for _ in range(5)))
    assert [[r.pid for r in found] for found in answers] == [[100, 101]] * 5


async def test_nobody_is_there() -> None:
    hub = Hub()
    hub.tell(ONE)
    assert await hub.settle() == []
    assert await hub.ask() == []


@contextlib.asynccontextmanager
async def deaf_peer(room: Room, pid: int) -> AsyncIterator[None]:
    """A process that says who it is, and nothing more."""
    _, writer = await asyncio.open_unix_connection(room.path)
    writer.write(orjson.dumps({"pid": pid}) + b"\n")
    await until(lambda: any(p.pid == pid for p in room.hub._peers))
    try:
        yield
    finally:
        writer.close()


async def test_process_that_hangs_is_named_and_holds_nobody_up(
    room: Room, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(channel, "_SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(channel, "_REPORT_SECONDS", 0.1)
    follower = await room.follower()
    async with deaf_peer(room, 7):
        room.hub.tell(ONE)
        assert await room.hub.settle() == [7]
        assert follower.applied == [ONE]
        assert [r.pid for r in await room.hub.ask()] == [follower.pid]
        assert "slow to report" in caplog.text


async def test_process_that_leaves_is_waited_for_no_more(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_SETTLE_SECONDS", 30.0)
    async with deaf_peer(room, 7):
        room.hub.tell(ONE)
        settling = asyncio.create_task(room.hub.settle())
        await asyncio.sleep(0.02)
        assert not settling.done()
    assert await asyncio.wait_for(settling, 5) == []


async def test_what_a_process_had_counted_stays_when_it_leaves(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_REPORT_SECONDS", 0.05)
    first, second = [await room.follower() for _ in range(2)]
    asking = asyncio.create_task(room.hub.keep_asking())
    await until(lambda: len(room.hub.reports) == 2)
    assert room.hub.ended == []
    for follower, total in ((first, 100.0), (second, 201.0)):
        await follower.leave()
        await until(lambda t=total: [n for *_, n in room.hub.ended] == [[t]])  # type: ignore[misc]
    await until(lambda: room.hub.reports == [])
    asking.cancel()
