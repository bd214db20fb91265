"""The shared state opens and closes as a whole."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.router.certificates import aged, make
from tests.unit.router.conftest import CALM, Lab, running_router
from tests.unit.router.stub_engine import hang

from plait.router.config import ConfigError, PrefillTarget, RouterConfig
from plait.router.directory import Desired
from plait.router.discovery.target import Target
from plait.router.key_lines import digest_of
from plait.router.state import open_state, trust_of

PREFILL = Target.prefill("http://127.0.0.1:1", bootstrap_port=8998)
DECODE = Target.decode("http://127.0.0.1:2")


def config(**settings: object) -> RouterConfig:
    made = {"prefill": [PrefillTarget("http://p:1", 8998)], "decode": ["http://d:1"], "deadlines": CALM}
    return RouterConfig(**(made | settings))  # type: ignore[arg-type]


async def test_nothing_runs_on_after_it_is_closed(lab: Lab) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode")
    decode.status_delay = 60.0  # a poll under way when the state closes
    targets = (Target.prefill(prefill.url, bootstrap_port=8998), Target.decode(decode.url))
    before = asyncio.all_tasks()
    async with open_state(config(poll_interval=0.05)) as state:
        state.apply(Desired(targets))
        async with asyncio.timeout(10):
            while prefill.status_polls < 3 or not decode.status_polls:
                await asyncio.sleep(0.01)
        pools = [w.pool for w in state.workers.workers]
    # Only what serves the stub engines may be left.
    assert not [t for t in asyncio.all_tasks() - before if "plait" in repr(t.get_coro())]
    async with asyncio.timeout(5):
        while any(pool.connections for pool in pools):
            await asyncio.sleep(0.01)
    polls = prefill.status_polls
    await asyncio.sleep(0.15)
    assert prefill.status_polls == polls


async def test_prefill_that_lingers_is_aborted_at_the_end(lab: Lab) -> None:
    engines = [await lab.engine("prefill"), await lab.engine("decode")]
    engines[0].behave = hang
    async with running_router(engines) as router:
        await router.until(lambda: bool(router.state.workers.pairs()))
        code, _ = await router.post("/generate", {"text": "x"})
        assert code == 200
        assert not engines[0].aborts
    assert [rid for rid, _ in engines[0].aborts] == [engines[0].prompts[0]["rid"]]
    assert not engines[1].aborts


async def test_list_of_workers_is_taken_with_its_withdrawals() -> None:
    async with open_state(config()) as state:
        state.apply(Desired((PREFILL, DECODE), (DECODE.url,)))
        assert {w.url: w.draining for w in state.workers.workers} == {PREFILL.url: False, DECODE.url: True}
        state.apply(Desired((PREFILL,)))
        assert [w.url for w in state.workers.workers] == [PREFILL.url]


async def test_keys_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"one sha256:{digest_of(b'a').hex()}\n")
    async with open_state(config(api_keys=[str(aged(file))], admin_port=1)) as state:
        assert state.keys is not None
        assert state.keys.names == ["one"]
        file.write_text(f"two sha256:{digest_of(b'b').hex()}\n")
        aged(file)
        async with asyncio.timeout(10):
            while state.keys.names != ["two"]:
                await asyncio.sleep(0.02)


async def test_keys_that_cannot_be_used_are_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="api_keys"):
        async with open_state(config(api_keys=[str(tmp_path / "none")], admin_port=1)):
            pytest.fail("it opened")


def test_engines_are_checked_as_told(tmp_path: Path) -> None:
    assert trust_of(config()) is None
    assert trust_of(config(engine_insecure=True)) is not None
    with pytest.raises(ConfigError, match="engine_ca"):
        trust_of(config(engine_ca=str(tmp_path / "none")))
    ca = tmp_path / "ca.pem"
    ca.write_bytes(make("authority", authority=True).pem)
    assert trust_of(config(engine_ca=str(ca))) is not None
