"""Tests that mostly wait, run at once: each still reports for itself."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping


async def together(scenarios: Mapping[str, Callable[[], Awaitable[None]]]) -> dict[str, str]:
    """Run all; by name: what failed (a traceback), empty where nothing did."""

    async def outcome(scenario: Callable[[], Awaitable[None]]) -> str:
        try:
            await scenario()
        except Exception:
            return traceback.format_exc()
        return ""

    found = await asyncio.gather(*(outcome(s) for s in scenarios.values()))
    return dict(zip(scenarios, found, strict=True))
