"""Ask engines: through a prefill -> decode pair, or a unified engine. Batches are formed as a whole."""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx

from harness.engines import Engine
from harness.held import Held

Prompt = list[int]
TOP = 5


class Answer(NamedTuple):
    """Greedy token ids, per token its TOP best as (token id, logprob), best first, and the logprobs of the
    prompt's own tokens as far as they were asked for (None for the first)."""

    ids: list[int]
    top: list[list[tuple[int, float]]]
    cached: int
    prompt: tuple[float | None, ...] = ()


class Pair(NamedTuple):
    """What one request gave: the decode engine's answer, the prefill's first token, and its room."""

    decode: Answer
    prefill: Answer
    room: int


def prompt(tokens: int, seed: int) -> Prompt:
    """A random prompt."""
    chosen = random.Random(seed)
    return [chosen.randrange(5, 500) for _ in range(tokens)]


def ask_pair(
    prefill: Engine,
    decode: Engine,
    prompts: Sequence[Prompt],
    *,
    new: int = 8,
    together: bool = True,
    logprobs_from: int = -1,
) -> list[Pair]:
    """Send all prompts at once. `logprobs_from`: position from which logprobs of the prompt are asked for.

    `together`: all are in prefill's queue before its first batch is formed, and all have arrived at decode
    before it begins, so that both engines form the same batches whatever the timing.
    """
    with ThreadPoolExecutor(2 * len(prompts)) as pool, contextlib.ExitStack() as stack:
        sides = [stack.enter_context(Held(engine)) for engine in (prefill, decode)] if together else []
        rooms = [secrets.randbits(62) for _ in prompts]
        legs = []
        for index, (ids, room) in enumerate(zip(prompts, rooms, strict=True)):
            body = _body(ids, new=new, rid=f"{index:03d}-{room:x}", logprobs_from=logprobs_from)
            body |= {
                "bootstrap_host": "127.0.0.1",
                "bootstrap_port": prefill.bootstrap_port,
                "bootstrap_room": room,
            }
            legs.append(tuple(pool.submit(_post, engine, body) for engine in (prefill, decode)))
        for side in sides:
            side.release_at(len(prompts))
        return [
            Pair(decode=second.result(), prefill=first.result(), room=room)
            for (first, second), room in zip(legs, rooms, strict=True)
        ]


def ask(engine: Engine, ids: Prompt, *, new: int = 8) -> Answer:
    """Ask an engine that prefills and decodes."""
    return _post(engine, _body(ids, new=new, rid=f"one-{secrets.randbits(62):x}"))


def _body(ids: Prompt, *, new: int, rid: str, logprobs_from: int = -1) -> dict[str, Any]:
    return {
        "input_ids": ids,
        "rid": rid,
        "sampling_params": {"max_new_tokens": new, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": TOP,
        "logprob_start_len": logprobs_from,
    }


def _post(engine: Engine, body: dict[str, Any]) -> Answer:
    answer = httpx.post(f"{engine.url}/generate", json=body, timeout=600)
    if answer.status_code != 200:
        raise AssertionError(f"{engine.name} answered {answer.status_code}: {answer.text[:500]}")
    told = answer.json()
    meta = told["meta_info"]
    top = [[(token, value) for value, token, _ in one] for one in meta["output_top_logprobs"]]
    own = tuple(value for value, *_ in meta.get("input_token_logprobs") or ())
    return Answer(told["output_ids"], top, meta["cached_tokens"], own)
