"""Workers of the command line."""

from __future__ import annotations

import asyncio

import pytest

from plait.router.config import ConfigError
from plait.router.discovery.source import Source
from plait.router.discovery.static import StaticSource, static_targets
from plait.router.discovery.target import Target, Targets


def test_flags_become_targets() -> None:
    found = static_targets(
        prefill=["http://10.0.0.1:30000,8998", " http://p2:1 , 2 "], decode=[" http://10.0.0.2:30000/ "]
    )
    assert found == (
        Target.prefill("http://10.0.0.1:30000", bootstrap_port=8998),
        Target.prefill("http://p2:1", bootstrap_port=2),
        Target.decode("http://10.0.0.2:30000"),
    )


@pytest.mark.parametrize(
    ("prefill", "decode", "field", "fix"),
    [
        ([], ["http://d:1"], "prefill", "at least one prefill"),
        (["http://p:1,2"], [], "decode", "at least one decode"),
        (["http://p:1"], ["http://d:1"], "prefill", "URL,BOOTSTRAP_PORT"),
        (["http://p:1,"], ["http://d:1"], "prefill", "URL,BOOTSTRAP_PORT"),
        (["http://p:1,x"], ["http://d:1"], "prefill", "URL,BOOTSTRAP_PORT"),
        (["http://p:1,0"], ["http://d:1"], "prefill bootstrap port", "between 1 and 65535"),
        (["p:1,2"], ["http://d:1"], "prefill", "http://HOST:PORT"),
        (["http://p:1,2"], ["http://d:1,2"], "decode", "http://HOST:PORT"),
        (["http://p:1,2"], ["http://p:1"], "prefill, decode", "every engine once"),
        (["http://p:1,2", "http://p:1,3"], ["http://d:1"], "prefill", "every engine once"),
    ],
)
def test_refusals_name_field_and_fix(prefill: list[str], decode: list[str], field: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        static_targets(prefill=prefill, decode=decode)
    assert caught.value.field == field
    assert fix in caught.value.fix


async def test_the_list_is_handed_over_once_and_stays() -> None:
    taken = list[Targets]()
    source = StaticSource(static_targets(prefill=["http://p:1,2"], decode=["http://d:1"]))
    checked: Source = source
    assert (checked.synced, checked.age) == (False, None)
    task = asyncio.create_task(source.watch(taken.append))
    await asyncio.sleep(0.05)
    assert not task.done()
    assert len(taken) == 1
    assert len(taken[0]) == 2
    assert (source.kind, source.synced, source.problem, source.age) == ("flags", True, "", 0.0)
    assert not source.skipped
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
