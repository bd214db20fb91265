"""Request bodies: what the router has to know of one, and the pairing fields spliced into it.

The client's bytes are never written anew: they are parsed once to look at a handful of fields, and what the
router adds goes in front of the closing brace. So every field an engine knows, or will know, arrives
untouched: big integers, number formats, key order.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import orjson

from plait.router.errors import bad_request
from plait.router.randomness import random_bytes
from plait.router.samples.fields import refuse_owned
from plait.router.samples.split import MAX_SAMPLES, sample_count, single_sample_body


class Route(StrEnum):
    """The engine routes that take a prompt."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    GENERATE = "/generate"


Buffer: TypeAlias = bytes | memoryview
# Up to here, copying is cheaper than a piece more to send.
_SHORT = 16 << 10


class Call(NamedTuple):
    """A checked request. `batch` is the number of prompts in a list, None for a single prompt.

    `body` asks for one sample; `samples` are wanted. `prompt_logprobs`: the answer needs the prompt's
    logprobs, which only the prefill engine has. `priority`: the client's own, higher goes first; the engines
    get it too. `fields`: the parsed body.
    """

    route: Route
    body: bytes
    batch: int | None
    prompt_logprobs: bool
    samples: int = 1
    priority: int = 0
    fields: Mapping[str, Any] = MappingProxyType({})

    def light(self) -> Call:
        """Without the parsed fields of a long prompt, which are as long as itself; traces' are kept."""
        if len(self.body) <= _SHORT:
            return self
        return self._replace(fields={name: self.fields.get(name) for name in ("model", "stream")})

    @property
    def legs(self) -> int:
        """Engine requests on each side."""
        return self.samples * (self.batch or 1)


class Tags(NamedTuple):
    """What pairs the two legs of one request: a bootstrap room and a request id for each prompt."""

    request_id: str
    rooms: tuple[int, ...]
    rids: tuple[str, ...]


def fresh_tags(batch: int | None, request_id: str | None = None) -> Tags:
    """New rooms (63 random bits, never 0, which engines read as "unset") and request ids, never seen before.

    `request_id`: one that was drawn before, and for no other request.

    Ids of one batch have one length, so none is a prefix of another: engines abort by prefix.
    """
    if batch is None:
        request_id = request_id or fresh_id()
        return Tags(request_id, (fresh_room(),), (request_id,))
    request_id = request_id or fresh_id()
    rooms: dict[int, None] = {}
    while len(rooms) < batch:
        rooms[fresh_room()] = None
    return Tags(request_id, tuple(rooms), tuple(f"{request_id}-{i:06d}" for i in range(batch)))


def fresh_id() -> str:
    """32 hex digits that name a request."""
    return random_bytes(16).hex()


def fresh_room() -> int:
    """One bootstrap room: 1 .. 2**63 - 1, fit for a signed 64-bit field."""
    return int.from_bytes(random_bytes(8)) >> 1 or 1


def parse(raw: bytes, route: Route, *, max_batch: int, max_samples: int = MAX_SAMPLES) -> Call:
    """Check `raw` (a JSON object, as the client sent it) for `route`.

    Raises RouterError (400, naming the field) for what is no JSON object, for fields that belong to the
    router, and for what cannot be answered right through a pair of engines.
    """
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The request body is not valid JSON: {error}.", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise bad_request(
            f"The request body must be a JSON object, not {_kind(fields)}.", code="invalid_json"
        )
    refuse_owned(fields)
    batch = _batch(fields, route)
    if batch is not None and batch > max_batch:
        name = _prompt_field(fields, route)
        raise bad_request(
            f"'{name}' holds {batch} prompts; one request may hold {max_batch}: send several requests.",
            param=name,
        )
    samples = sample_count(fields, route, batch=batch, max_samples=max_samples)
    if samples > 1:
        if samples * (batch or 1) > max_batch:
            raise bad_request(
                f"{samples} samples of {batch or 1} prompts are over {max_batch}, which one request may "
                "have: send several requests.",
                param="n" if route is not Route.GENERATE else "sampling_params.n",
            )
        raw = single_sample_body(raw, route)
    priority = fields.get("priority")
    return Call(
        route,
        raw,
        batch,
        _prompt_logprobs(fields, route),
        samples,
        priority if isinstance(priority, int) else 0,
        fields,
    )


def splice(call: Call, tags: Tags, *, bootstrap_host: str, bootstrap_port: int) -> list[Buffer]:
    """`call.body` with the pairing fields added, in pieces; scalars for a single prompt, lists for a batch.

    The client's bytes are not copied: a long prompt is sent twice from where it was read.
    """
    single = call.batch is None
    added = orjson.dumps(
        {
            "bootstrap_host": bootstrap_host,
            "bootstrap_port": bootstrap_port,
            "bootstrap_room": tags.rooms[0] if single else tags.rooms,
            "rid": tags.rids[0] if single else tags.rids,
        }
    )
    # `parse` has seen an object, so its last brace closes it.
    body = call.body
    end = body.rindex(b"}")
    empty = end < _SHORT and body[:end].strip(b" \t\r\n") == b"{"
    tail = added[1:] if empty else b"," + added[1:]
    if end < _SHORT:
        return [body[:end] + tail]
    return [memoryview(body)[:end], tail]


def _kind(value: object) -> str:
    names: dict[type, str] = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _prompt_field(fields: Mapping[str, Any], route: Route) -> str:
    if route is not Route.GENERATE:
        return "prompt"
    return next((n for n in ("text", "input_ids", "input_embeds") if fields.get(n) is not None), "text")


def _batch(fields: Mapping[str, Any], route: Route) -> int | None:
    """Number of prompts in a list, None for a single prompt.

    Follows the engine's own rule: text is tried before ids, ids before embeddings; ids are one prompt when
    the first is a number, embeddings when the first of the first is. A shape the engine will refuse counts
    as single: the engine says what is wrong with it.
    """
    if route is Route.CHAT:
        return None
    name = _prompt_field(fields, route)
    prompt = fields.get(name)
    if not isinstance(prompt, list) or not prompt:
        return None
    first = prompt[0]
    if name == "input_embeds":
        nested = isinstance(first, list) and bool(first) and isinstance(first[0], list)
        return len(prompt) if nested else None
    return len(prompt) if isinstance(first, str | list) else None


def _prompt_logprobs(fields: Mapping[str, Any], route: Route) -> bool:
    """Whether the prompt's logprobs are asked for; refused where the router could not put them in."""
    if route is Route.COMPLETIONS:
        if fields.get("echo") and fields.get("logprobs"):
            raise bad_request(
                "'echo' with 'logprobs' asks for the prompt's logprobs, which completions through a pair of "
                "engines do not carry: use /generate with return_logprob and logprob_start_len.",
                param="echo",
                code="unsupported",
            )
        return False
    if route is not Route.GENERATE:
        return False
    wanted = fields.get("return_logprob")
    if not (any(wanted) if isinstance(wanted, list) else wanted):
        return False
    start = fields.get("logprob_start_len")
    starts = start if isinstance(start, list) else [start]
    if fields.get("stream") and any(s is not None and s != -1 for s in starts):
        raise bad_request(
            "'logprob_start_len' asks for the prompt's logprobs, which a streamed answer through a pair of "
            "engines does not carry: set stream to false, or leave logprob_start_len out.",
            param="logprob_start_len",
            code="unsupported",
        )
    return True
