"""Hashes of a prompt's prefixes, by which requests find the worker that has them cached.

A page of the engines' cache is 64 tokens, here about 256 bytes of text or 64 token ids. The router has no
tokenizer, so its pages and the engine's do not match one to one: equal hashes mean equal text, and that
the engine then finds equal tokens is certain; how many is an estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import orjson
from xxhash import xxh3_64_intdigest

from plait.router.body import Route

PAGE_TOKENS = 64
PAGE_BYTES = 256
# A block is what gets a hash: a page, beyond the first pages several, which bounds the cost of long prompts.
_FINE = 64
_COARSE = 16
# Pages after which prompts are kin (they begin with the same system prompt or document).
_ROOT = 8

# Fields under which the engine keeps separate caches, beside the model: equal prompts share nothing then.
_CACHE_FIELDS = ("lora_path", "extra_key", "cache_salt")
_MASK = (1 << 64) - 1
_PROMPT_FIELDS = {Route.COMPLETIONS: ("prompt",), Route.GENERATE: ("text", "input_ids")}


Buffer: TypeAlias = bytes | memoryview


class PrefixKeys(NamedTuple):
    """What placement knows of a prompt; hashes have 64 bits.

    `anchor`: of the part that names the conversation, which does not change as it grows: tools and messages
    through the user's first, or of a prompt without messages the largest power of two of pages (which
    changes when the prompt has doubled). `root`: of its first pages, equal for prompts of one kind.
    `blocks`: chain hashes, each of the whole prefix up to the end of its block, ascending. `half`: blocks in
    the first half of a prompt that does not say where its parts begin; 0 for one that does.
    """

    anchor: int
    root: int
    blocks: tuple[int, ...] = ()
    half: int = 0


def pages_in(depth: int) -> int:
    """Pages in the first `depth` blocks."""
    return depth if depth <= _FINE else _FINE + (depth - _FINE) * _COARSE


def prefix_keys(fields: Mapping[str, Any], route: Route, *, body: bytes) -> PrefixKeys:
    """Keys of a request: its parsed `fields`, and its `body` as it came.

    Of a batch, the first prompt's. Anything that is no prompt (embeddings, wrong types: the engine will say
    so) has no blocks and the body's hash as its anchor; nothing raises.
    """
    seed = _salt(fields)
    if route is Route.CHAT:
        keys = _chat(fields, seed)
    else:
        keys = None
        for name in _PROMPT_FIELDS[route]:
            if (prompt := fields.get(name)) is not None:
                keys = _prompt(prompt, seed)
                break
    if keys is None:
        anchor = xxh3_64_intdigest(body, seed)
        keys = PrefixKeys(anchor, anchor)
    return keys


def _salt(fields: Mapping[str, Any]) -> int:
    model = fields.get("model")
    seed = xxh3_64_intdigest(model.encode("utf-8", "surrogatepass")) if isinstance(model, str) else 0
    for name in _CACHE_FIELDS:
        value = fields.get(name)
        if isinstance(value, list):
            value = value[0] if value else None
        if isinstance(value, str):
            # The field's name too: the same value in another field is another cache.
            seed = xxh3_64_intdigest(f"{name}={value}".encode("utf-8", "surrogatepass"), seed)
    return seed


def _chat(fields: Mapping[str, Any], seed: int) -> PrefixKeys | None:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    parts: list[bytes] = []
    anchored = 0  # parts through the user's first message
    try:
        if tools := fields.get("tools"):
            parts.append(orjson.dumps(tools))
        for message in messages:
            parts += _message(message)
            if not anchored and isinstance(message, dict) and message.get("role") == "user":
                anchored = len(parts)
    except TypeError:  # nested deeper than orjson writes
        return None
    # A longer conversation's bytes extend the shorter one's.
    data = b"".join(parts)
    anchor_end = sum(map(len, parts[:anchored])) if anchored else len(data)
    return _chain(memoryview(data).__getitem__, len(data), PAGE_BYTES, anchor_end, seed)


def _message(message: object) -> tuple[bytes, ...]:
    """A message as bytes that no other message begins with. Most are a role and a text: those are not
    written as JSON, which would cost more than all the hashing.
    """
    if isinstance(message, dict) and len(message) == 2:
        role, content = message.get("role"), message.get("content")
        if isinstance(role, str) and isinstance(content, str):
            text = content.encode("utf-8", "surrogatepass")
            return (b"\x1e%b %d " % (role.encode("utf-8", "surrogatepass"), len(text)), text)
    return (b"\x1f", orjson.dumps(message))


def _prompt(prompt: object, seed: int) -> PrefixKeys | None:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if not prompt:
        return None
    if isinstance(prompt, str):
        data = prompt.encode("utf-8", "surrogatepass")
        return _halves(memoryview(data).__getitem__, len(data), PAGE_BYTES, seed)
    if isinstance(prompt, list):
        ids = prompt
        try:
            # JSON: a third of the cost of packing the ids into machine words, and it takes any garbage.
            return _halves(lambda part: orjson.dumps(ids[part]), len(ids), PAGE_TOKENS, seed)
        except TypeError:  # nested deeper than orjson writes
            return None
    return None


def _halves(piece: Callable[[slice], Buffer], size: int, page: int, seed: int) -> PrefixKeys:
    """Keys of a prompt that does not say where its parts begin."""
    pages = size // page
    anchor_end = page << (pages.bit_length() - 1) if pages else size
    keys = _chain(piece, size, page, anchor_end, seed)
    half = (pages + 1) // 2
    return keys._replace(half=half if half <= _FINE else _FINE + -(-(half - _FINE) // _COARSE))


def _chain(piece: Callable[[slice], Buffer], size: int, page: int, anchor_end: int, seed: int) -> PrefixKeys:
    """Keys of a prompt of `size` units, `page` of them a page, of which `piece` gives the bytes of a slice.

    Each block's hash is seeded by the one before, so that it stands for the whole prefix.
    """
    digest = xxh3_64_intdigest
    blocks: list[int] = []
    anchor = root = start = 0
    hashed, chain, step, end = False, seed, page, page
    while True:
        if end > anchor_end and not hashed:
            # Under the inverse seed: else the anchor of a short prompt would be a longer one's first block.
            anchor = digest(piece(slice(start, anchor_end)), chain ^ _MASK)
            root = blocks[_ROOT - 1] if len(blocks) >= _ROOT else anchor
            hashed = True
        if end > size:
            return PrefixKeys(anchor, root, tuple(blocks))
        chain = digest(piece(slice(start, end)), chain)
        blocks.append(chain)
        if len(blocks) == _FINE:
            step = page * _COARSE
        start, end = end, end + step
