"""Workers named on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from plait.router.config import ConfigError
from plait.router.discovery.base import BaseSource
from plait.router.discovery.source import Take
from plait.router.discovery.target import Target, Targets, distinct


def static_targets(*, prefill: Sequence[str], decode: Sequence[str]) -> Targets:
    """Targets of `--prefill URL,BOOTSTRAP_PORT` and `--decode URL`. Raises ConfigError.

    Both sides need one at least: no other will come later.
    """
    if not prefill:
        raise ConfigError("prefill", (), "name at least one prefill engine: --prefill URL,BOOTSTRAP_PORT")
    if not decode:
        raise ConfigError("decode", (), "name at least one decode engine: --decode URL")
    return distinct([*map(_prefill, prefill), *(Target.decode(text.strip()) for text in decode)])


def _prefill(text: str) -> Target:
    url, comma, port = text.rpartition(",")
    if not comma or not port.strip().isdecimal():
        raise ConfigError("prefill", text, "write URL,BOOTSTRAP_PORT, for example http://10.0.0.1:30000,8998")
    return Target.prefill(url.strip(), bootstrap_port=int(port))


class StaticSource(BaseSource):
    """A list that never changes."""

    def __init__(self, targets: Targets) -> None:
        super().__init__(kind="flags", name="command line")
        self._targets = targets

    @property
    def age(self) -> float | None:
        """0 from the start on: such a list cannot go stale."""
        return 0.0 if self.synced else None

    async def watch(self, take: Take) -> None:
        """Call `take` once, then wait for the cancellation."""
        self._hand_over(take, self._targets)
        await asyncio.get_running_loop().create_future()
