"""What the harness says when the machine or a component lets it down."""

from __future__ import annotations

from pathlib import Path


class ClusterError(RuntimeError):
    """The cluster cannot be started or has lost a component; the message says which, and how its log ends."""


def tail(log: Path, *, lines: int = 25) -> str:
    """The last `lines` of a log, or why there are none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"({log}: {error.strerror})"
    told = text.splitlines()[-lines:]
    return "\n".join(told) if told else f"({log} is empty)"
