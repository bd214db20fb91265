"""One run over a fleet: a burst, quiet, and a churn, each with its figures."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any, Final

from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.processes import Process
from tests.cluster.scale.figures import MIB, Figures, Usage, machine_cpu, slope
from tests.cluster.scale.fleet import Fleet
from tests.cluster.scale.outside import Outside
from tests.cluster.scale.report import percentiles, say

Json = dict[str, Any]
_COMPONENTS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")


class Measure:
    """Of one operator and one fleet. Every method says and returns what it has seen."""

    def __init__(
        self, cluster: Cluster, fleet: Fleet, operator: Process, outside: Outside, *, routers: int
    ) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._operator = operator
        self._outside = outside
        self._routers = routers

    def burst(self) -> Json:
        """Make them all at once, and wait until every one is available."""
        before, began, load = self._usage(), time.monotonic(), machine_cpu()
        self._fleet.create(self._fleet.most)
        made = time.monotonic() - began
        self._fleet.await_available(seconds=max(180.0, self._fleet.count * 3.0), told=_tell)
        took = time.monotonic() - began
        answer = {"made_in_s": round(made, 1), **self._filled(took), **self._since(before, took, load)}
        say(f"burst: {answer}")
        return answer

    def grow(self, *, wave: int, minutes: float) -> Json:
        """Make some at a time, each wave when the one before is available, until all are there or the time
        is over. How many there are then is what this machine took."""
        before, began, load = self._usage(), time.monotonic(), machine_cpu()
        while self._fleet.count < self._fleet.most and time.monotonic() - began < minutes * 60:
            self._fleet.create(min(wave, self._fleet.most - self._fleet.count))
            self._fleet.await_available(seconds=900.0, told=_tell)
        took = time.monotonic() - began
        answer = {"wave": wave, **self._filled(took), **self._since(before, took, load)}
        say(f"grown: {answer}")
        return answer

    def _filled(self, took: float) -> Json:
        figures = Figures.of(self._operator)
        return {
            "deployments": self._fleet.count,
            "pods": self._fleet.pods,
            "available_in_s": round(took, 1),
            "writes": figures.written,
            "writes_by_verb": {what: int(n) for what, n in sorted(figures.writes.items()) if n},
            "writes_a_second": round(figures.written / took, 1),
            "looks": int(figures.looks),
            "ms_a_plan": round(figures.plan_s / figures.looks * 1000, 2),
            "objects": {kind: int(n) for kind, n in sorted(figures.objects.items())},
        }

    def quiet(self, seconds: float) -> Json:
        """Nothing is changed: what it costs, and that nothing is written."""
        self._settle()
        before, first, load = self._usage(), Figures.of(self._operator), machine_cpu()
        time.sleep(seconds)
        told = Figures.of(self._operator) - first
        answer = {
            "seconds": seconds,
            "writes": told.written,
            "looks": int(told.looks),
            "router_polls_a_second": round(sum(told.polls.values()) / seconds, 1),
            **self._since(before, seconds, load),
        }
        say(f"quiet: {answer}")
        return answer

    def churn(self, *, minutes: float, rate: float, each: Callable[[int, Json], None] | None = None) -> Json:
        """Edits for so long. `each` is told every minute's figures."""
        before, first, load = self._usage(), Figures.of(self._operator), machine_cpu()
        self._outside.take()
        sizes, seen, made, last = [self._operator.memory() / MIB], dict[str, list[float]](), 0, first
        count = max(1, round(minutes))
        seconds = minutes * 60 / count
        for number in range(count):
            edits = self._fleet.churn(self._outside, seconds=seconds, rate=rate)
            made += edits
            found, now = self._outside.take(), Figures.of(self._operator)
            for kind, times in found.items():
                seen.setdefault(kind, []).extend(times)
            sizes.append(self._operator.memory() / MIB)
            minute = {
                "edits": edits,
                "inside_p95_s": round((now - last).quantile(0.95), 3),
                "outside_p95_s": percentiles([*itertools.chain(*found.values())]).get("p95"),
                "mib": round(sizes[-1], 1),
                "depth": int(now.depth),
                "load": round(os.getloadavg()[0], 1),
            }
            last = now
            say(f"minute {number + 1}: {minute}")
            if each is not None:
                each(number, minute)
        took = count * seconds
        told = last - first
        answer = {
            "seconds": round(took),
            "edits": made,
            "edits_a_second": round(made / took, 2),
            "inside_s": {
                "answers": told.answered(),
                **{f"p{share:g}": round(told.quantile(share / 100), 3) for share in (50, 95, 99)},
                "within_1_s": round(told.within(1.0), 4),
            },
            "outside_s": {
                "all": percentiles([*itertools.chain(*seen.values())]),
                **{kind: percentiles(times) for kind, times in seen.items()},
            },
            "unanswered_after_10_s": len(self._outside.late(after=10.0)),
            "writes": told.written,
            "writes_by_verb": {what: int(n) for what, n in sorted(told.writes.items()) if n},
            "looks": int(told.looks),
            "ms_a_plan": round(told.plan_s / told.looks * 1000, 2),
            "faults": int(told.results.get("fault", 0)),
            "router_polls_a_second": round(sum(told.polls.values()) / took, 1),
            "mib_by_minute": [round(size, 1) for size in sizes],
            "mib_a_minute": round(slope(sizes) / (seconds / 60), 3),
            **self._since(before, took, load),
        }
        say(f"churn: { {k: v for k, v in answer.items() if k != 'mib_by_minute'} }")
        return answer

    def _settle(self) -> None:
        """Until a few seconds pass without a write."""
        deadline = time.monotonic() + 180
        last = Figures.of(self._operator).written
        while time.monotonic() < deadline:
            time.sleep(3.0)
            now = Figures.of(self._operator).written
            if now == last:
                return
            last = now

    def _usage(self) -> dict[str, Usage]:
        pids = {name: self._cluster.components.pid(name) for name in _COMPONENTS}
        pids |= {"operator": self._operator.pid, "routers (stub)": self._routers, "this test": os.getpid()}
        return {name: Usage.of(pid) for name, pid in pids.items() if pid is not None}

    def _since(self, before: dict[str, Usage], seconds: float, load: tuple[float, float]) -> Json:
        """Cores taken since then, MiB now and at most, by process; and of the whole machine."""
        busy, whole = (now - then for now, then in zip(machine_cpu(), load, strict=True))
        usage = self._usage()
        return {
            "cores_in_use_of_the_machine": round(busy / seconds, 2),
            "cores_of_the_machine": round(whole / seconds),
            "processes": {
                name: {
                    "cores": round((now.cpu_s - before[name].cpu_s) / seconds, 3),
                    "mib": round(now.resident / MIB),
                    "most_mib": round(now.peak / MIB),
                }
                for name, now in usage.items()
            },
        }


def _tell(count: int) -> None:
    if os.environ.get("PLAIT_SCALE_TELL"):
        say(f"{time.strftime('%H:%M:%S')}: {count} available")
