"""The shared state opens and closes as a whole."""

from __future__ import annotations

import asyncio

from tests.unit.router.conftest import CALM, Lab

from plait.router.config import PrefillTarget, RouterConfig
from plait.router.state import open_state


async def test_nothing_runs_on_after_it_is_closed(lab: Lab) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode")
    decode.status_delay = 60.0  # a poll under way when the state closes
    config = RouterConfig(
        prefill=[PrefillTarget(prefill.url, 8998)], decode=[decode.url], deadlines=CALM, poll_interval=0.05
    )
    before = asyncio.all_tasks()
    async with open_state(config) as state:
        async with asyncio.timeout(2):
            while prefill.status_polls < 3:
                await asyncio.sleep(0.01)
        assert {w.url for w in state.workers.workers} == {prefill.url, decode.url}
    assert state.session.closed
    # Only what serves the stub engines may be left.
    left = [t for t in asyncio.all_tasks() - before if "plait" in repr(t.get_coro())]
    assert not left
    polls = prefill.status_polls
    await asyncio.sleep(0.2)
    assert prefill.status_polls == polls
