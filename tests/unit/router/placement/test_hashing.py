"""Prefix hashes: equal prefixes have equal hashes, everywhere, and nothing that a client sends raises."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from plait.router.body import Route
from plait.router.placement.hashing import PAGE_BYTES, PAGE_TOKENS, PrefixKeys, pages_in, prefix_keys

Message = dict[str, Any]


def keys(fields: dict[str, Any], route: Route = Route.CHAT) -> PrefixKeys:
    return prefix_keys(fields, route, body=orjson.dumps(fields))


def chat(*messages: Message, **more: Any) -> PrefixKeys:
    return keys({"model": "m", "messages": list(messages), **more})


def said(role: str, pages: float, mark: str) -> Message:
    return {"role": role, "content": (mark * 8_000)[: int(pages * PAGE_BYTES)]}


def common(a: PrefixKeys, b: PrefixKeys) -> int:
    """Blocks that both begin with."""
    equal = [x == y for x, y in zip(a.blocks, b.blocks, strict=False)]
    return equal.index(False) if False in equal else len(equal)


SYSTEM = said("system", 10, "be helpful. ")


# --- conversations -----------------------------------------------------------------------------------------


def test_a_longer_conversation_extends_the_shorter() -> None:
    turns = [SYSTEM, said("user", 3, "why? "), said("assistant", 4, "so. "), said("user", 2, "and? ")]
    first, second = chat(*turns[:2]), chat(*turns)
    assert len(first.blocks) == 13
    assert second.blocks[:13] == first.blocks
    assert (second.anchor, second.root) == (first.anchor, first.root)
    assert len(second.blocks) == 19


def test_conversations_of_one_kind_share_root_and_prefix_only() -> None:
    a, b = chat(SYSTEM, said("user", 3, "why? ")), chat(SYSTEM, said("user", 3, "how? "))
    assert a.root == b.root
    assert a.anchor != b.anchor
    assert common(a, b) == 10


def test_short_system_prompts_make_no_kind() -> None:
    system = said("system", 3, "be brief. ")
    a, b = chat(system, said("user", 3, "why? ")), chat(system, said("user", 3, "how? "))
    assert a.root == a.anchor != b.root


def test_tools_stand_before_the_messages() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 3_000}}]
    with_tools, without = (chat(SYSTEM, said("user", 1, "x"), **m) for m in ({"tools": tools}, {}))
    assert common(with_tools, without) == 0
    other = chat(said("system", 10, "be rude. "), said("user", 1, "x"), tools=tools)
    assert common(with_tools, other) >= 3_000 // PAGE_BYTES


def test_the_anchor_ends_with_the_first_user_message() -> None:
    asked = said("user", 2, "why? ")
    one = chat(SYSTEM, asked, said("assistant", 1, "a"), said("user", 1, "b"))
    other = chat(SYSTEM, asked, said("assistant", 1, "c"), said("user", 1, "d"))
    assert one.anchor == other.anchor
    assert one.anchor != chat(SYSTEM, said("user", 2, "why! "), said("assistant", 1, "a")).anchor


def test_a_conversation_without_a_user_is_anchored_whole() -> None:
    assert chat(SYSTEM).anchor != chat(SYSTEM, said("assistant", 1, "a")).anchor


@pytest.mark.parametrize("field", ["model", "lora_path", "extra_key", "cache_salt"])
def test_separate_caches_share_nothing(field: str) -> None:
    plain, salted, other = (
        chat(SYSTEM, said("user", 3, "x"), **m) for m in ({}, {field: "one"}, {field: "two"})
    )
    assert len({plain.root, salted.root, other.root}) == 3
    assert common(plain, salted) == common(salted, other) == 0


def test_the_same_value_in_another_field_is_another_cache() -> None:
    assert chat(SYSTEM, extra_key="x").root != chat(SYSTEM, cache_salt="x").root


# --- other prompts -----------------------------------------------------------------------------------------


def text(prompt: Any, route: Route = Route.COMPLETIONS) -> PrefixKeys:
    return keys({"prompt" if route is Route.COMPLETIONS else "text": prompt}, route)


def test_text_pages() -> None:
    words = "".join(f"{i:06d} " for i in range(1_000))
    whole = text(words)
    assert len(whole.blocks) == len(words) // PAGE_BYTES == 27
    assert text(words[: 5 * PAGE_BYTES + 100]).blocks == whole.blocks[:5]
    changed = text(words[:1_000] + "!" + words[1_001:])
    assert common(whole, changed) == 1_000 // PAGE_BYTES


def test_text_is_anchored_at_powers_of_two() -> None:
    words = "".join(f"{i:06d} " for i in range(1_500))
    anchors = [text(words[: n * PAGE_BYTES]).anchor for n in (16, 17, 31, 32, 33, 35)]
    assert anchors[0] == anchors[1] == anchors[2] != anchors[3] == anchors[4] == anchors[5]


def test_half_of_a_text_prompt_in_blocks() -> None:
    for pages in (1, 2, 9, 64, 127, 128, 129, 1_000, 1_001):
        found = text("x" * (pages * PAGE_BYTES))
        assert pages_in(found.half) >= pages / 2 > pages_in(found.half - 1)
    assert text("x" * 10).half == 0


def test_token_ids_pages() -> None:
    ids = list(range(100_000, 100_000 + 10 * PAGE_TOKENS + 5))
    whole = keys({"input_ids": ids}, Route.GENERATE)
    assert len(whole.blocks) == 10
    assert keys({"input_ids": ids[: 4 * PAGE_TOKENS]}, Route.GENERATE).blocks == whole.blocks[:4]
    assert common(whole, keys({"input_ids": [*ids[:200], 7, *ids[201:]]}, Route.GENERATE)) == 3


def test_long_prompts_have_few_blocks() -> None:
    whole = text("".join(f"{i:09d} " for i in range(20 * 1024)))
    assert len(whole.blocks) == 64 + (800 - 64) // 16
    assert pages_in(len(whole.blocks)) == 800


@pytest.mark.parametrize("route", [Route.COMPLETIONS, Route.GENERATE])
def test_the_first_prompt_of_a_batch_counts(route: Route) -> None:
    assert text(["a" * 600, "b" * 600], route) == text("a" * 600, route)


def test_text_goes_before_ids() -> None:
    both = keys({"text": "a" * 600, "input_ids": [1, 2]}, Route.GENERATE)
    assert both == keys({"text": "a" * 600}, Route.GENERATE)


# --- what is no prompt -------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", list(Route))
@pytest.mark.parametrize(
    "fields", [{}, {"messages": []}, {"prompt": None, "text": ""}, {"input_embeds": [[0.5]]}, {"prompt": 5}]
)
def test_no_prompt_has_the_bodys_anchor(route: Route, fields: dict[str, Any]) -> None:
    one, two = (prefix_keys(fields, route, body=body) for body in (b"one", b"two"))
    assert one.blocks == ()
    assert one.anchor == one.root != two.anchor


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_FIELDS = ["model", "messages", "tools", "prompt", "text", "input_ids", "lora_path", "extra_key"]


@given(st.dictionaries(st.sampled_from(_FIELDS), _JSON), st.sampled_from(Route))
def test_nothing_that_a_client_sends_raises(fields: dict[str, Any], route: Route) -> None:
    found = prefix_keys(fields, route, body=b"{}")
    assert all(0 <= hash < 2**64 for hash in (found.anchor, found.root, *found.blocks))


def test_nested_deeper_than_can_be_written() -> None:
    deep: Any = []
    for _ in range(600):
        deep = [deep]
    for fields, route in (
        ({"messages": [deep]}, Route.CHAT),
        ({"messages": [SYSTEM], "tools": deep}, Route.CHAT),
        ({"input_ids": [1, deep]}, Route.GENERATE),
    ):
        assert prefix_keys(fields, route, body=b"x") == prefix_keys({}, route, body=b"x")


def test_ids_mixed_with_garbage_keep_what_comes_before() -> None:
    ids: list[Any] = list(range(PAGE_TOKENS * 3))
    mixed = keys({"input_ids": [*ids, "x", 1.5, None, {}]}, Route.GENERATE)
    assert mixed.blocks == keys({"input_ids": ids}, Route.GENERATE).blocks


# --- everywhere the same -----------------------------------------------------------------------------------

_PROGRAM = """
from plait.router.body import Route
from plait.router.placement.hashing import prefix_keys
fields = {"model": "m", "messages": [{"role": "user", "content": "café " * 300}]}
print(prefix_keys(fields, Route.CHAT, body=b""))
"""


def test_processes_agree() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert printed == {str(chat({"role": "user", "content": "café " * 300})) + "\n"}


def test_hashes_do_not_change_between_releases() -> None:
    # During a rollout old and new routers serve side by side: a change here scatters every conversation.
    page = b"a" * PAGE_BYTES
    first = xxh3_64_intdigest(page, 0)
    second = xxh3_64_intdigest(page, first)
    anchor = xxh3_64_intdigest(b"", second ^ (2**64 - 1))
    third = xxh3_64_intdigest(page, second)
    assert text("a" * 1_000) == PrefixKeys(anchor, anchor, (first, second, third), half=2)
    assert first == 4601359343016513779
