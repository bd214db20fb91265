"""The watch tells of a lost rank, once, by name."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.unit.peer.ranks import open_fds, until

from plait.peer.pads import Fault
from plait.peer.processes import PeerProcess, Peers
from plait.peer.watch import PeerWatch


class Stub:
    """A barrier that has failed or not."""

    name = "mla"
    timeout_s = 3.0

    def __init__(self, fault: Fault | None = None) -> None:
        self.said = fault

    def meet(self) -> None: ...

    def fault(self) -> Fault | None:
        return self.said


@contextmanager
def sleeper() -> Iterator[tuple[subprocess.Popen[bytes], Peers]]:
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    try:
        pidfd = os.pidfd_open(child.pid)
        peers = Peers([PeerProcess(1, child.pid, pidfd), PeerProcess(2, 99, None)])
        os.close(pidfd)
        yield child, peers
        peers.close()
        assert not peers.ended()
        peers.close()
    finally:
        child.kill()
        child.wait()


def test_a_process_that_ends_is_told_once_within_a_second() -> None:
    before = open_fds()
    with sleeper() as (child, peers):
        told: list[str] = []
        watch = PeerWatch(peers=peers, barriers=[Stub()], on_fault=told.append, interval_s=0.02)
        time.sleep(0.2)
        assert not told
        child.kill()
        until(lambda: bool(told))
        # Not reaped: a zombie has ended too.
        assert told == [f"rank 1 (pid {child.pid}) has ended"]
        time.sleep(0.2)
        assert len(told) == 1
        watch.close()
    assert open_fds() == before


def test_a_barriers_fault_is_told_with_the_ranks() -> None:
    with sleeper() as (child, peers):
        told: list[str] = []
        barrier = Stub()
        watch = PeerWatch(peers=peers, barriers=[Stub(), barrier], on_fault=told.append, interval_s=0.02)
        barrier.said = Fault(channel=1, meeting=12, missing=(1, 2))
        until(lambda: bool(told))
        watch.close()
        assert told == [
            f"rank 1 (pid {child.pid}), rank 2 (pid 99) did not come to meeting 12 of barrier 'mla' within "
            "3 s"
        ]
        child.kill()
        until(lambda: bool(peers.ended()))
        assert str(watch.look()).endswith(f"; rank 1 (pid {child.pid}) has ended")


def test_after_close_nothing_is_told() -> None:
    with sleeper() as (child, peers):
        told: list[str] = []
        watch = PeerWatch(peers=peers, barriers=[], on_fault=told.append, interval_s=0.02)
        watch.close()
        watch.close()
        child.kill()
        time.sleep(0.2)
        assert not told


def test_the_one_who_is_told_may_close() -> None:
    with sleeper() as (child, peers):
        closed = threading.Event()

        def on_fault(message: str) -> None:
            watch.close()
            closed.set()

        watch = PeerWatch(peers=peers, barriers=[], on_fault=on_fault, interval_s=0.02)
        child.kill()
        assert closed.wait(20)


def test_many_threads_may_ask() -> None:
    with sleeper() as (child, peers):
        wrong: list[BaseException] = []
        stop = threading.Event()

        def ask() -> None:
            try:
                while not stop.is_set():
                    assert peers.ended() <= {1}
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        child.kill()
        until(lambda: peers.ended() == {1})
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong, wrong


def test_a_loss_that_shows_late_is_found() -> None:
    with sleeper() as (child, peers):
        watch = PeerWatch(peers=peers, barriers=[], on_fault=lambda _: None, interval_s=60.0)
        watch.close()
        assert watch.find(within_s=0.05) is None
        threading.Timer(0.1, child.kill).start()
        assert watch.find(within_s=20.0) == f"rank 1 (pid {child.pid}) has ended"
