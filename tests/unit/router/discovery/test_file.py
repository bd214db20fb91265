"""The file source: changes are followed within a second, and bad versions change nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from plait.router.discovery.file import FileSource
from plait.router.discovery.target import Targets

DEFAULT = FileSource(Path()).poll_interval


def text(*decode: str) -> str:
    urls = ", ".join(f"{{url: 'http://{d}:1'}}" for d in decode)
    return f"workers: {{prefill: [{{url: 'http://p:1', bootstrapPort: 2}}], decode: [{urls}]}}\n"


class Followed:
    """A file source that runs, and the lists that it has handed over."""

    def __init__(self, path: Path, poll_interval: float) -> None:
        self.source = FileSource(path, poll_interval=poll_interval)
        self.taken: list[Targets] = []

    def decode(self) -> list[str]:
        """Hosts of the decode targets in the last list."""
        return [t.url.removeprefix("http://").removesuffix(":1") for t in self.taken[-1][1:]]

    async def until(self, condition: Callable[[], bool]) -> float:
        """Seconds until `condition` held."""
        start = time.monotonic()
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)
        return time.monotonic() - start


@contextlib.asynccontextmanager
async def followed(path: Path, poll_interval: float = 0.05) -> AsyncIterator[Followed]:
    it = Followed(path, poll_interval)
    task = asyncio.create_task(it.source.watch(it.taken.append))
    try:
        yield it
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_changes_are_noticed_within_a_second(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(text("a"))
    async with followed(file, poll_interval=DEFAULT) as it:
        await it.until(lambda: len(it.taken) == 1)
        assert it.decode() == ["a"]
        waits = []
        for number in range(3):
            file.write_text(text(f"b{number}"))
            waits.append(await it.until(lambda n=number: it.decode() == [f"b{n}"]))
        # The best of three: a busy machine may take its time once, a slow poll always does.
        assert min(waits) < 1.0
        assert len(it.taken) == 4


async def test_a_new_version_of_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(text("a"))
    os.utime(file, ns=(10**18, 10**18))
    async with followed(file) as it:
        await it.until(lambda: len(it.taken) == 1)
        file.write_text(text("b"))
        os.utime(file, ns=(10**18, 10**18))
        await it.until(lambda: it.decode() == ["b"])


async def test_a_swapped_symlink_is_followed(tmp_path: Path) -> None:
    """As a ConfigMap is brought up to date: workers.yaml -> ..data/workers.yaml, ..data -> a dated folder."""
    for version in ("1", "2"):
        folder = tmp_path / f"..{version}"
        folder.mkdir()
        (folder / "workers.yaml").write_text(text(f"v{version}"))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "workers.yaml").symlink_to("..data/workers.yaml")
    async with followed(tmp_path / "workers.yaml") as it:
        await it.until(lambda: len(it.taken) == 1)
        assert it.decode() == ["v1"]
        (tmp_path / "..new").symlink_to("..2")
        os.replace(tmp_path / "..new", tmp_path / "..data")
        await it.until(lambda: it.decode() == ["v2"])


async def test_a_bad_version_keeps_the_list_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "workers.yaml"
    file.write_text(text("a"))
    async with followed(file) as it:
        await it.until(lambda: it.source.synced)
        file.write_text(text("not an address"))
        await it.until(lambda: bool(it.source.problem))
        await asyncio.sleep(0.3)  # more polls of the same bad version
        assert it.decode() == ["a"]
        assert it.source.synced
        assert "workers.decode[0].url = 'http://not an address:1'" in it.source.problem
        assert it.source.counts == {"loads": 1, "refused": 1}
        assert it.source.age is not None
        assert it.source.age > 0.25, "a list that the file no longer says is not fresh"
        file.write_text(text("b"))
        await it.until(lambda: it.decode() == ["b"])
        assert it.source.problem == ""
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "the workers known so far stay" in warnings[0]


async def test_a_file_that_goes_away_keeps_the_list(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(text("a"))
    async with followed(file) as it:
        await it.until(lambda: it.source.synced)
        file.unlink()
        await it.until(lambda: "No such file" in it.source.problem)
        assert it.decode() == ["a"]
        file.write_text(text("a"))
        await it.until(lambda: not it.source.problem)
        assert len(it.taken) == 1, "the same list is not handed over again"


async def test_a_file_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    async with followed(file) as it:
        await it.until(lambda: "No such file" in it.source.problem)
        assert not it.source.synced
        assert not it.taken
        file.write_text(text("a"))
        await it.until(lambda: it.source.synced)
        assert it.decode() == ["a"]


async def test_half_a_file_is_not_read(tmp_path: Path) -> None:
    """Half of this one is sound YAML with fewer workers: it must have kept still before it is believed."""
    file = tmp_path / "workers.yaml"
    head = "workers:\n  prefill: [{url: http://p:1, bootstrapPort: 2}]\n  decode:\n    - url: http://a:1\n"
    file.write_text(head + "    - url: http://b:1\n")
    async with followed(file, poll_interval=0.25) as it:
        await it.until(lambda: it.source.synced)
        await asyncio.sleep(0.15)  # the next poll falls between the two writes
        with file.open("w") as out:
            out.write(head)
            out.flush()
            await asyncio.sleep(0.2)  # under one poll
            out.write("    - url: http://b:1\n    - url: http://c:1\n")
        await it.until(lambda: len(it.taken) == 2)
        assert it.decode() == ["a", "b", "c"]


async def test_a_file_that_never_keeps_still_is_read_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(text("a"))

    async def rewrite() -> None:
        for number in range(1000):
            spare = tmp_path / "spare"
            spare.write_text(text("b") + f"# {number}\n")
            os.replace(spare, file)
            await asyncio.sleep(0.01)

    async with followed(file) as it:
        await it.until(lambda: it.source.synced)
        task = asyncio.create_task(rewrite())
        await it.until(lambda: it.decode() == ["b"])
        assert not task.done()
        task.cancel()
