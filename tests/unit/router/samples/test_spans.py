"""Positions of values agree with what the json module reads; an edit changes nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.router.samples.json_text import SPACE, VALUES, lists, loads, objects

from plait.router.samples.spans import Edit, edited, elements, members


@given(SPACE, objects(VALUES), SPACE)
def test_members_are_what_json_reads(before: str, text: str, after: str) -> None:
    whole = before + text + after
    found = members(whole)
    assert [(m.key, loads(whole[m.start : m.end])) for m in found] == loads(text)[1]


@given(SPACE, lists(VALUES), SPACE)
def test_elements_are_what_json_reads(before: str, text: str, after: str) -> None:
    whole = before + text + after
    assert [loads(whole[e.start : e.end]) for e in elements(whole)] == loads(text)


@given(st.text(max_size=5), objects(VALUES))
def test_an_object_inside_other_text_is_read_from_where_it_begins(before: str, text: str) -> None:
    assert members(before + text, len(before)) == [
        (key, start + len(before), end + len(before)) for key, start, end in members(text)
    ]


@given(objects(VALUES), st.data())
def test_an_edited_value_is_the_only_thing_that_changes(text: str, data: st.DataObject) -> None:
    found = members(text)
    chosen = [m for m in found if data.draw(st.booleans())]
    new = edited(text, [Edit(m.start, m.end, '"new"') for m in reversed(chosen)])
    pairs = loads(text)[1]
    for m in chosen:
        pairs[found.index(m)] = (m.key, "new")
    assert loads(new) == ("object", pairs)
    assert len(new) == len(text) + sum(len('"new"') - (m.end - m.start) for m in chosen)


def test_values_end_exactly_where_they_end() -> None:
    text = '{"a":-1.50e+3 ,"b": "x\\"}" , "c":[1,{"d":[]}], "a":null}'
    assert [(m.key, text[m.start : m.end]) for m in members(text)] == [
        ("a", "-1.50e+3"),
        ("b", '"x\\"}"'),
        ("c", '[1,{"d":[]}]'),
        ("a", "null"),
    ]


def test_escaped_keys_are_resolved() -> None:
    assert [m.key for m in members('{"\\u006e":1,"a\\tb":2}')] == ["n", "a\tb"]


def test_numbers_longer_than_python_reads_are_stepped_over() -> None:
    number = "1" * 6000
    text = f'{{"a":{number},"n":2}}'
    assert [text[m.start : m.end] for m in members(text)] == [number, "2"]


@pytest.mark.parametrize(
    "text",
    ["", "   ", "[]", '"a"', "{", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', '{"a" 1}', "{a:1}",
     "{1:2}", '{"a":1 "b":2}', '{"a":tru}', '{"a":[1,2}', '{"a":"x}', '{"a":1]', '{"a":1}}', '{} x'],
)  # fmt: skip
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"character|char"):
        members(text)


@pytest.mark.parametrize(
    "text", ["", "{}", "[", "[1", "[1,", "[1,]", "[1 2]", "[1}", "[nul]", "[1]]", "[] 2"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"character|char"):
        elements(text)


def test_nesting_without_end_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        members('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")


def test_edits_within_a_part() -> None:
    assert edited("abcdef", [Edit(4, 5, "E"), Edit(2, 2, "-")], start=1, end=5) == "b-cdE"
