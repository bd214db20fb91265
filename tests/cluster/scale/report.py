"""The figures of a run: printed as they come, and written as JSON where PLAIT_FIGURES names a file."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def say(text: str) -> None:
    """At once, whatever pytest keeps to itself."""
    print(f"\n[scale] {text}", flush=True)


def machine() -> str:
    """What it runs on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB: the operator, the edits, the routers' answers, etcd, "
        "kube-apiserver, kube-controller-manager, kube-scheduler and kwok all on them"
    )


def write(name: str, figures: Json) -> None:
    """Put `figures` under `name` into the file, beside what is in there."""
    told = os.environ.get("PLAIT_FIGURES")
    if not told:
        return
    path = Path(told)
    held: Json = json.loads(path.read_text()) if path.exists() else {}
    held["machine"] = machine()
    held[name] = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), **figures}
    path.write_text(json.dumps(held, indent=1) + "\n")


def percentiles(seconds: list[float]) -> Json:
    """Of measured times, in order."""
    if not seconds:
        return {"count": 0}
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    return {"count": len(ordered), "p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "most": at(1.0)}
