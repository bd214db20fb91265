"""Hypothesis strategies for JSON text as clients and engines may write it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

SPACE = st.text(alphabet=" \t\r\n", max_size=3)
# Numbers as text: forms that a parser changes (exponents, digits beyond a double, beyond int()'s limit).
NUMBERS = st.one_of(
    st.integers().map(str),
    st.sampled_from(["-0", "1E+5", "0.10", "1e-07", "123456789012345678901234567890", "-0.0e-0"]),
    st.integers(min_value=10**20, max_value=10**40).map(str),
)
STRINGS = st.one_of(
    st.text(max_size=8).map(lambda s: json.dumps(s, ensure_ascii=False)),
    st.text(max_size=8).map(json.dumps),
    st.sampled_from(['"\\u006e"', '"n"', '"]}"', '"{\\"n\\":2,"', '"\\\\"', '"\\/\\ud83d\\ude00"', '"日本"']),
)
SCALARS = st.one_of(NUMBERS, STRINGS, st.sampled_from(["true", "false", "null"]))


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str], keys: st.SearchStrategy[str] = STRINGS) -> str:
    """An object; two keys may be equal."""
    items = draw(st.lists(st.tuples(SPACE, keys, SPACE, SPACE, values, SPACE), max_size=5))
    inner = ",".join(f"{a}{key}{b}:{c}{value}{d}" for a, key, b, c, value, d in items)
    return "{" + (inner or draw(SPACE)) + "}"


@st.composite
def lists(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    """A list."""
    items = draw(st.lists(st.tuples(SPACE, values, SPACE), max_size=5))
    return "[" + (",".join(map("".join, items)) or draw(SPACE)) + "]"


VALUES = st.recursive(SCALARS, lambda inner: objects(inner) | lists(inner), max_leaves=12)


def loads(text: str) -> Any:
    """`text` parsed with nothing lost: numbers stay text, objects become lists of pairs."""
    return json.loads(
        text,
        parse_int=lambda n: f"#{n}",
        parse_float=lambda n: f"#{n}",
        object_pairs_hook=lambda pairs: ("object", pairs),
    )
