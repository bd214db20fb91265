"""Workers from a file that is read again when it changes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from plait.contract.violation import ContractError
from plait.router.discovery.base import BaseSource
from plait.router.discovery.source import Take
from plait.router.discovery.target import Targets


class FileSource(BaseSource):
    """Follows the file at `path`, looked at every `poll_interval` seconds; a symlink is followed each time.

    Polled, not notified: a ConfigMap's file changes by the swap of a symlink two folders up. A version that
    cannot be used changes nothing, and is told once.
    """

    # A file that is still being written is read when it has kept still for one poll, or after this many.
    _UNSETTLED_POLLS = 2

    def __init__(self, path: Path | str, *, poll_interval: float = 0.25) -> None:
        super().__init__(kind="file", name=str(path))
        self._path = Path(path)
        self.poll_interval = poll_interval

    async def watch(self, take: Take) -> None:
        """Follow the file until cancelled. The first look is at once, and needs no second."""
        current = pending = _state(self._path)
        await self._read(take)
        polls = 0
        while True:
            await asyncio.sleep(self.poll_interval)
            state = _state(self._path)
            if state == current:
                pending, polls = state, 0
                if not self.problem:
                    self._heard()
                continue
            polls += 1
            if state == pending or polls > self._UNSETTLED_POLLS:
                # Taken before the read: a change during it is seen at the next poll.
                current, polls = state, 0
                await self._read(take)
            pending = state

    async def _read(self, take: Take) -> None:
        try:
            # In a thread: parsing hundreds of workers takes longer than a stream may wait.
            targets = await asyncio.to_thread(_load, self._path)
        except ContractError as error:
            self.counts["refused"] += 1
            self._failed("cannot be used: " + "; ".join(str(v) for v in error.violations))
            return
        self.counts["loads"] += 1
        self._hand_over(take, targets)
        self._heard()
        self._well()


def _load(path: Path) -> Targets:
    from plait.router.discovery.workers_file import read_workers_file

    return read_workers_file(path)


def _state(path: Path) -> tuple[int, ...]:
    """Differs between versions of the file; also says that there is none, and why."""
    try:
        found = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    # ctime: a change of rights, or of the content in the same tick of mtime.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
