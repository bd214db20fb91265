"""Rank processes for the peer tests: forked from a server that has torch loaded, so that each starts soon."""

from __future__ import annotations

import gc
import multiprocessing as mp
import multiprocessing.forkserver
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, NamedTuple

HANG_S = 120.0


class Told(NamedTuple):
    """What a rank returned, or the exception that it raised (its type's name and text)."""

    value: Any = None
    error: str = ""
    text: str = ""


class Group:
    """Running ranks. `kill` and `stop` a rank; `hear` what it returned."""

    def __init__(self, processes: list[ForkServerProcess], pipes: list[Connection]) -> None:
        self.processes, self._pipes = processes, pipes

    def pid(self, rank: int) -> int:
        pid = self.processes[rank].pid
        assert pid is not None
        return pid

    def kill(self, rank: int) -> None:
        os.kill(self.pid(rank), signal.SIGKILL)
        self.processes[rank].join()

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pid(rank), number)

    def hear(self, rank: int, *, within_s: float = HANG_S) -> Told:
        assert self._pipes[rank].poll(within_s), f"rank {rank} said nothing within {within_s} s"
        told = self._pipes[rank].recv()
        assert isinstance(told, Told)
        return told

    def all(self) -> list[Told]:
        return [self.hear(rank) for rank in range(len(self._pipes))]

    def values(self) -> list[Any]:
        told = self.all()
        assert not any(one.error for one in told), "\n".join(one.text for one in told)
        return [one.value for one in told]


@contextmanager
def group(work: Callable[..., object], *, ranks: int, **given: object) -> Iterator[Group]:
    """`work(rank, ranks, **given)` in a process per rank."""
    # Fresh processes as with "spawn", but torch is imported once for all of them.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__, "pytest", "plait.peer"])
    processes, pipes = [], []
    try:
        for rank in range(ranks):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_main, args=(work, rank, ranks, there, given), daemon=True)
            process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
        yield Group(processes, pipes)
    finally:
        for process in processes:
            process.join(0.5)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in pipes:
            pipe.close()


def stop_server() -> None:
    """End the process that ranks are forked from: with torch in it, it holds half a gigabyte."""
    mp.forkserver._forkserver._stop()  # type: ignore[attr-defined]


def open_fds() -> int:
    """Descriptors that this process has open."""
    gc.collect()  # what other tests left to the collector must not go meanwhile
    return len(os.listdir("/proc/self/fd"))


def until(condition: Callable[[], bool], *, within_s: float = 20.0) -> None:
    """Wait for `condition`."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


def _main(
    work: Callable[..., object], rank: int, ranks: int, pipe: Connection, given: dict[str, object]
) -> None:
    try:
        told = Told(value=work(rank, ranks, **given))
    except BaseException as error:
        told = Told(error=type(error).__name__, text=f"{error}\n{traceback.format_exc()}")
    pipe.send(told)
