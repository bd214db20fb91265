"""One worker: when it is in rotation, and what it remembers of its engine."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.unit.router.stub_engine import engine_status

from plait.contract.status import EngineStatus
from plait.router.discovery.target import Target
from plait.router.workers import Worker

PREFILL = Target.prefill("http://p:1", bootstrap_port=8998)


class Line:
    """What a pool is to its worker."""

    authority = b"p:1"
    dropped = 0

    def drop_idle(self) -> None:
        self.dropped += 1


class Told:
    freed = changed = 0

    def free(self) -> None:
        self.freed += 1

    def change(self) -> None:
        self.changed += 1


def status(*, wire: str = "wire-a", cp: int = 2, started_at: float = 1.0, **changed: Any) -> EngineStatus:
    made = engine_status("prefill", wire_hash=wire, cp=cp)
    return made.model_copy(update={"started_at": started_at, **changed})


def made(target: Target = PREFILL) -> tuple[Worker, Told]:
    told = Told()
    line: Any = Line()
    return Worker(target, line, limit=4, freed=told.free, changed=told.change), told


@pytest.fixture
def worker() -> Worker:
    one, _ = made()
    one.take(status())
    return one


def test_new_worker_has_to_be_asked_first() -> None:
    worker, told = made()
    assert not worker.takes
    assert "has not been read yet" in worker.candidate().trouble
    assert worker.age is None
    assert worker.asked_at < time.monotonic() - 1e6
    assert worker.take(status()) is False
    assert worker.takes
    assert worker.candidate().trouble == ""
    assert (worker.wire, told.changed) == ("wire-a", 1)
    assert worker.age is not None
    assert 0 <= worker.age < 1
    # Nothing has changed: nobody who waits need be asked.
    worker.take(status())
    assert told.changed == 1


def test_no_two_workers_are_one() -> None:
    assert made()[0].id != made()[0].id
    assert made()[0].host_line == b"host: p:1\r\n"


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"role": "decode"}, "it is a decode engine, listed as prefill"),
        ({"role": "unified"}, "it is a unified engine"),
        ({"version": 2}, "version 2, this router reads 1"),
        ({"ranks": []}, "0 of its 2 ranks"),
    ],
)
def test_engine_that_cannot_serve_its_side(worker: Worker, told: dict[str, Any], reason: str) -> None:
    worker.take(status(**told))
    assert not worker.takes
    assert reason in worker.trouble
    assert worker.reachable
    worker.take(status())
    assert worker.takes


def test_contract_that_changes_is_taken_up() -> None:
    worker, told = made()
    worker.take(status())
    worker.take(status(wire="wire-b"))
    assert (worker.wire, told.changed) == ("wire-b", 2)


def test_one_late_poll_makes_suspect_and_several_end_it(worker: Worker) -> None:
    worker.late(misses=3, trouble="late")
    assert (worker.suspect, worker.reachable, worker.trouble) == (True, False, "")
    assert worker.takes
    worker.late(misses=3, trouble="late")
    assert not worker.trouble
    worker.late(misses=3, trouble="late")
    assert worker.trouble == "late"
    worker.take(status())
    assert (worker.suspect, worker.reachable, worker.trouble, worker.misses) == (False, True, "", 0)


def test_worker_that_was_never_read_is_out_when_it_is_late() -> None:
    worker, _ = made()
    worker.late(misses=3, trouble="late")
    assert worker.trouble == "late"


def test_worker_that_is_out_comes_back_with_a_good_poll() -> None:
    worker, told = made()
    worker.take(status())
    worker.out("it refused a connection")
    assert not worker.takes
    assert worker.candidate().trouble == "it refused a connection"
    worker.take(status())
    assert worker.takes
    assert told.changed == 2


def test_draining_worker_takes_nothing_by_whoevers_word(worker: Worker) -> None:
    worker.withdrawn = True
    assert worker.draining
    assert not worker.takes
    assert "draining" in worker.candidate().trouble
    worker.withdrawn = False
    assert worker.takes
    worker.target = PREFILL._replace(draining=True, reason="the pod is terminating")
    assert worker.draining
    assert not worker.takes
    assert worker.candidate().trouble == "the pod is terminating"


def test_open_breaker_takes_nothing_until_its_probe(worker: Worker) -> None:
    for _ in range(3):
        worker.breaker.failed(worker.breaker.take())
    assert not worker.takes
    assert "circuit breaker" in worker.candidate().trouble
    # A health check that is good again after a bad one lets a probe go.
    worker.breaker.checked(healthy=False)
    worker.breaker.checked(healthy=True)
    assert worker.takes
    ticket = worker.breaker.take()
    assert not worker.takes
    worker.breaker.succeeded(ticket)
    assert worker.takes


def test_legs_are_counted_and_their_end_is_told() -> None:
    worker, told = made()
    worker.enter(3)
    assert (worker.in_flight, worker.load, told.freed) == (3, 3, 0)
    worker.leave(1)
    worker.leave(2)
    assert (worker.in_flight, worker.load, told.freed) == (0, 0, 2)


@pytest.mark.parametrize("how", ["started_at", "pids"])
def test_restarted_engine_is_another_one(worker: Worker, how: str) -> None:
    for _ in range(3):
        worker.breaker.failed(worker.breaker.take())
    old, line = worker.id, worker.pool
    if how == "started_at":
        now = status(started_at=2.0)
    else:
        now = status()
        now.ranks[1].pid += 1
    assert worker.take(now) is True
    assert worker.id != old
    assert worker.takes, "what its predecessor did wrong is not its own"
    assert line.dropped == 1  # type: ignore[attr-defined]
    assert worker.take(now) is False
    assert line.dropped == 1  # type: ignore[attr-defined]
