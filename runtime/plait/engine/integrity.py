"""The page accounting check in a running engine: when idle, and on demand between two batches.

On demand: the HTTP process leaves a request in the state folder, each rank's status thread notices it, the
scheduler runs the check at its next turn (it alone may walk the tree), and the rank leaves its answer.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from plait.contract.status import IntegrityCounts
from plait.engine import state
from plait.engine.holders import request_pages, tree_pages
from plait.engine.install import implements
from plait.pools import PageAccount, account

_REQUEST = "integrity-request.json"
_ANSWER_WITHIN_S = 10.0
_IDLE_EVERY_S = 5.0
"""How often an idle engine checks again though nothing has changed."""
_IDLE_AT_MOST_EVERY_S = 1.0


class IntegrityCheck:
    """The check of one rank and its counters. `run` belongs to the scheduler's thread."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._runs = self._failures = 0
        self._last_failure = ""
        self._seen: tuple[int, float] = (0, 0.0)
        self.requested: tuple[Path, float] | None = None
        self._answered = 0.0

    def counts(self) -> IntegrityCounts:
        """Counters for the status."""
        return IntegrityCounts(runs=self._runs, failures=self._failures, last_failure=self._last_failure)

    def run(self) -> PageAccount:
        """Account for every page now. A fault is printed and counted; it does not end the engine."""
        allocator = state.allocator
        if allocator is None:
            raise RuntimeError("this engine's pages are not Plait's to account for")
        found = account(
            allocator.geometry,
            allocator.pages.free_mask(),
            tree=tree_pages(self._scheduler.tree_cache),
            requests=request_pages(self._scheduler),
        )
        self._runs += 1
        if found.faults:
            self._failures += 1
            self._last_failure = "; ".join(found.faults)
            print(f"plait: page accounting fault: {self._last_failure}", flush=True)
        return found

    def run_when_idle(self) -> None:
        """Run if pages were taken or given since the last run, or some seconds have passed."""
        if not state.settings.integrity or state.allocator is None:
            return
        now, fingerprint = time.monotonic(), state.allocator.pages.fingerprint()
        quiet_for = now - self._seen[1]
        if quiet_for < (_IDLE_EVERY_S if fingerprint == self._seen[0] else _IDLE_AT_MOST_EVERY_S):
            return
        self._seen = (fingerprint, now)
        self.run()

    def run_if_requested(self) -> None:
        """Answer a request that the status thread has found."""
        if self.requested is None:
            return
        folder, stamp = self.requested
        self.requested = None
        found = self.run()
        answer = {"stamp": stamp, "rank": state.group().rank, **found._asdict()}
        target = folder / f"integrity-answer-{state.group().rank}.json"
        fresh = target.with_suffix(".tmp")
        fresh.write_text(json.dumps(answer))
        fresh.replace(target)

    def poll_request(self, folder: Path) -> None:
        """Look for a request (the status thread's turn)."""
        try:
            stamp = float(json.loads((folder / _REQUEST).read_text())["stamp"])
        except (OSError, ValueError, KeyError):
            return
        if stamp > self._answered:
            self._answered = stamp
            self.requested = (folder, stamp)

    @staticmethod
    def request(folder: Path, *, ranks: int) -> dict[str, Any]:
        """Ask all ranks for a check and wait for the answers (the HTTP process's turn).

        Returns {done, ranks: [{rank, free, tree, requests, faults}]}; `done` is False if a rank has not
        answered within 10 s (a scheduler in the middle of a long forward).
        """
        stamp = time.time()
        target = folder / _REQUEST
        fresh = target.with_suffix(".tmp")
        fresh.write_text(json.dumps({"stamp": stamp}))
        fresh.replace(target)
        answers: dict[int, dict[str, Any]] = {}
        while time.time() - stamp < _ANSWER_WITHIN_S and len(answers) < ranks:
            for rank in range(ranks):
                try:
                    told = json.loads((folder / f"integrity-answer-{rank}.json").read_text())
                except (OSError, ValueError):
                    continue
                if told.pop("stamp") == stamp:
                    answers[rank] = told
            time.sleep(0.05)
        return {"done": len(answers) == ranks, "ranks": [answers[rank] for rank in sorted(answers)]}


@implements("managers.scheduler.Scheduler.on_idle")
def check_when_idle(self: Any) -> None:
    """Before the engine's own idle work, whose last step is to sleep until the next request has come."""
    if state.integrity is not None and self.is_fully_idle():
        state.integrity.run_when_idle()


@implements("managers.scheduler.Scheduler.process_input_requests")
def check_on_demand(self: Any, recv_reqs: list[Any]) -> None:
    del self, recv_reqs
    if state.integrity is not None:
        state.integrity.run_if_requested()
