"""Where values stand in JSON text, so that one can be replaced and every other character kept.

The reading itself is the standard library's C scanner: this only walks one level of an object or a list and
notes positions. Text, not bytes: `str` positions; UTF-8 that decodes is encoded back to the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

# Numbers stay text: they are stepped over, and int() would refuse more than 4300 digits.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
_read: Callable[[str, int], tuple[object, int]] = _DECODER.raw_decode
_gap = re.compile(r"[ \t\r\n]*").match


class Span(NamedTuple):
    """A value: `text[start:end]`."""

    start: int
    end: int


class Member(NamedTuple):
    """One key of an object (escapes resolved) and the value it stands before."""

    key: str
    start: int
    end: int


class Edit(NamedTuple):
    """`text[start:end]` is to become `put`."""

    start: int
    end: int
    put: str


def members(text: str, start: int | None = None) -> list[Member]:
    """The members of the object that begins at `start`; by default of the one that `text` is.

    In their order, and a key that stands there twice is listed twice. Raises ValueError where there is no
    such object, or it is not well-formed, or (by default) something stands after it.
    """
    found: list[Member] = []
    at = _open(text, start, "{", "an object")
    if text[at : at + 1] == "}":
        _close(text, start, at)
        return found
    while True:
        if text[at : at + 1] != '"':
            raise ValueError(f"a key must begin at character {at}")
        key, at = _value(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise ValueError(f"a colon must follow the key at character {at}")
        first = _skip(text, at + 1)
        _, at = _value(text, first)
        found.append(Member(str(key), first, at))
        at, more = _next(text, at, "}")
        if not more:
            _close(text, start, at)
            return found


def elements(text: str, start: int | None = None) -> list[Span]:
    """The elements of the list that begins at `start`; by default of the one that `text` is.

    In their order. Raises ValueError as `members` does.
    """
    found: list[Span] = []
    at = _open(text, start, "[", "a list")
    if text[at : at + 1] == "]":
        _close(text, start, at)
        return found
    while True:
        first = at
        _, at = _value(text, first)
        found.append(Span(first, at))
        at, more = _next(text, at, "]")
        if not more:
            _close(text, start, at)
            return found


def edited(text: str, edits: Iterable[Edit], *, start: int = 0, end: int | None = None) -> str:
    """`text[start:end]` with `edits` (inside it, not overlapping, in any order) made."""
    pieces: list[str] = []
    for edit in sorted(edits):
        pieces += (text[start : edit.start], edit.put)
        start = edit.end
    pieces.append(text[start:end])
    return "".join(pieces)


def _skip(text: str, at: int) -> int:
    gap = _gap(text, at)
    return gap.end() if gap else at


def _open(text: str, start: int | None, mark: str, kind: str) -> int:
    at = _skip(text, 0) if start is None else start
    if text[at : at + 1] != mark:
        raise ValueError(f"{kind} must begin at character {at}")
    return _skip(text, at + 1)


def _close(text: str, start: int | None, at: int) -> None:
    if start is None and _skip(text, at + 1) < len(text):
        raise ValueError(f"nothing may stand at character {at + 1}, after the end")


def _value(text: str, at: int) -> tuple[object, int]:
    try:
        return _read(text, at)
    except RecursionError:
        raise ValueError(f"the value at character {at} is nested too deeply") from None


def _next(text: str, at: int, close: str) -> tuple[int, bool]:
    """Where the next member or element begins, and whether there is one."""
    at = _skip(text, at)
    mark = text[at : at + 1]
    if mark == close:
        return at, False
    if mark != ",":
        raise ValueError(f"',' or '{close}' must stand at character {at}")
    return _skip(text, at + 1), True
