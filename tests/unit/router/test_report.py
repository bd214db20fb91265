"""What a process says of itself, and that it says the same after its way to the admin process."""

from __future__ import annotations

import asyncio
import os

import orjson
from tests.unit.router.asking import CHAT, CHAT_PATH
from tests.unit.router.conftest import Lab
from tests.unit.router.stub_engine import hang

from plait.router.report import Report, report
from plait.router.tally import added
from plait.telemetry import metrics as names


async def test_report_of_a_busy_process(lab: Lab) -> None:
    router = await lab.router(worker_limit=2)
    assert (await router.post(CHAT_PATH, CHAT))[0] == 200
    await router.until_idle()
    router.prefill.behave = router.decode.behave = hang
    tasks = [asyncio.create_task(router.post(CHAT_PATH, CHAT)) for _ in range(3)]
    await router.until(lambda: router.state.workers.line.waiting == 1 and len(router.decode.seen) == 3)
    made = report(router.state)
    assert (made.pid, made.in_flight, made.queued, made.pairs, made.draining) == (os.getpid(), 3, 1, 1, False)
    assert made.legs == {router.prefill.url: 2, router.decode.url: 2}
    assert made.breakers == {router.prefill.url: "closed", router.decode.url: "closed"}
    assert (names.REQUESTS.name, (CHAT_PATH, "ok"), [1.0]) in made.tallies
    after = Report.decode(orjson.loads(orjson.dumps(made.encode())))
    assert (after.pid, after.legs, after.breakers) == (made.pid, made.legs, made.breakers)
    assert after.tallies == made.tallies
    assert added([after.tallies]) == added([made.tallies])
    # A worker that is listed no more is counted while it has something to finish.
    router.board.directory.remove(router.decode.url)
    made = report(router.state)
    assert made.legs == {router.prefill.url: 2, router.decode.url: 2}
    assert (made.pairs, set(made.breakers)) == (0, {router.prefill.url})
    router.state.lifecycle.draining = True
    assert report(router.state).draining
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
