"""What every source of targets is to the router."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from plait.router.discovery.target import Targets

Take: TypeAlias = Callable[[Targets], None]
"""Takes the whole list of targets, not a difference. Must neither block nor raise."""


class Source(Protocol):
    """Finds workers for as long as `watch` runs.

    Trouble never empties the list: what was last known stays until the source knows better.
    """

    @property
    def kind(self) -> str:
        """`flags`, `file` or `kubernetes`."""

    @property
    def synced(self) -> bool:
        """Whether a whole list has been handed over. A router is not ready before."""

    @property
    def problem(self) -> str:
        """Why the list may be out of date, empty while the source is well."""

    @property
    def age(self) -> float | None:
        """Seconds since the list was last known to be true, None before the first."""

    @property
    def skipped(self) -> Mapping[str, str]:
        """Candidates that are no targets, by name, and why not."""

    @property
    def counts(self) -> Mapping[str, int]:
        """What the source has done since its start, by name; only ever grows."""

    async def watch(self, take: Take) -> None:
        """Call `take` with the whole list first, and again after each change. Ends only by cancellation."""
