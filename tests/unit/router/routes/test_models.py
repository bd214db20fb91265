"""The model list comes from a decode engine in rotation, and from no other."""

from __future__ import annotations

import json

from tests.unit.router.conftest import Lab, RunningRouter


async def test_decode_engine_answers(router: RunningRouter) -> None:
    async with router.http.get(router.url + "/v1/models") as response:
        assert response.status == 200
        assert json.loads(await response.read())["data"][0]["owned_by"] == "decode"


async def test_dead_engine_is_passed_over(lab: Lab) -> None:
    engines = [await lab.engine(side) for side in ("prefill", "decode", "decode")]
    router = await lab.router(*engines, ready=False, poll_interval=60.0)
    await router.until(lambda: len(router.state.workers.pairs()) == 2)
    await engines[1].stop()
    async with router.http.get(router.url + "/v1/models") as response:
        assert response.status == 200


async def test_no_engine_in_rotation(lab: Lab) -> None:
    prefill, decode = await lab.engine("prefill"), await lab.engine("decode", wire_hash="other")
    router = await lab.router(prefill, decode, ready=False)
    await router.until(lambda: all(w.reachable for w in router.state.workers.workers))
    async with router.http.get(router.url + "/v1/models") as response:
        assert response.status == 503
        assert json.loads(await response.read())["error"]["code"] == "no_pair"


async def test_answer_of_one_model_is_the_engines(router: RunningRouter) -> None:
    # The stub has no such route: its 404 comes through.
    async with router.http.get(router.url + "/v1/models/a%2Fb") as response:
        assert response.status == 404
