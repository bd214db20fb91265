"""Arguments become flags, and the flags read back are the arguments."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.contract.arguments import by_field, flags_of, without
from plait.contract.launch import CPU_FLAGS, decode_data, prefill_data
from plait.contract.validate.allowed import ALLOWED
from plait.contract.validate.argv import parse_engine_argv
from plait.contract.validate.constraints import CONSTRAINTS
from plait.contract.validate.engine_args import engine_args
from plait.contract.violation import ContractError

TABLE = engine_args()
SERVED = sorted(set().union(*ALLOWED.values(), *(rules for rules in CONSTRAINTS.values())))


def values(field: str) -> st.SearchStrategy[object]:
    option = TABLE.by_field[field]
    if option.form == "true":
        return st.booleans()
    if option.form == "bool":
        return st.booleans()
    text = st.text("abcxyz019/._ {}-", min_size=1, max_size=8)
    word: st.SearchStrategy[object] = {
        "int": st.integers(-5, 10**6),
        "human_int": st.integers(0, 10**6),
        "float": st.floats(0, 1e6, allow_nan=False),
        "json": st.dictionaries(text, st.integers() | text, max_size=3),
        "json_list": st.lists(text, max_size=3),
    }.get(option.type, text)
    if option.nargs in ("+", "*"):
        whole = word if option.type != "str" else text.filter(lambda t: not t.startswith("-"))
        return st.lists(whole, min_size=1, max_size=3)
    return word


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_is_written_is_read_back(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(SERVED), unique=True, max_size=6))
    args = {name: data.draw(values(name), label=name) for name in names}
    said = {name: value for name, value in args.items() if value is not False}
    assert parse_engine_argv(flags_of(args, table=TABLE)) == said


def test_the_order_of_writing_does_not_matter() -> None:
    args = {"port": 1, "host": "h", "log_level": "debug"}
    assert flags_of(args, table=TABLE) == flags_of(dict(reversed(args.items())), table=TABLE)


def test_what_the_engine_does_anyway_has_no_flag() -> None:
    assert flags_of({"context_length": None, "enable_metrics": False}, table=TABLE) == []


@pytest.mark.parametrize("key", ["page_size", "page-size", "--page-size"])
def test_fields_and_flags_name_the_same(key: str) -> None:
    assert by_field({key: 64}, table=TABLE) == {"page_size": 64}


def test_an_unknown_key_is_told_with_the_nearest() -> None:
    with pytest.raises(ContractError, match=r"spec\.args\.pagesize = 64: .*did you mean page_size"):
        by_field({"pagesize": 64, "port": 1}, table=TABLE, path="spec.args")


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("enable_metrics", "yes", "true or false"),
        ("port", {"a": 1}, "a text or a number"),
        ("port", True, "a text or a number"),
        ("gc_threshold", 3, "a list"),
        ("log_requests_target", ["--port"], "dashes"),
        ("no_such_field", 1, "no flag"),
    ],
)
def test_a_value_that_no_flag_carries_is_refused(field: str, value: object, why: str) -> None:
    with pytest.raises(ContractError, match=why) as caught:
        flags_of({field: value, "host": "h"}, table=TABLE, path="a")
    assert [v.field for v in caught.value.violations] == [f"a.{field}"]


def test_a_flag_goes_with_its_values() -> None:
    flags = ["--host", "h", "--sleep-on-idle", "--gc-threshold", "1", "2", "--port", "3"]
    assert without(flags, {"gc_threshold": None}, table=TABLE) == [
        "--host",
        "h",
        "--sleep-on-idle",
        "--port",
        "3",
    ]
    assert without(flags, {"sleep_on_idle": False, "port": 4}, table=TABLE) == [
        *("--host", "h", "--gc-threshold", "1", "2")
    ]
    assert without(flags, {}, table=TABLE) == flags


@pytest.mark.parametrize("cpu", [True, False])
def test_every_flag_of_a_launch_can_be_replaced(cpu: bool) -> None:
    common = {"model": "/m", "served_name": "m", "host": "h", "port": 1, "max_total_tokens": 64}
    common |= {"context_length": 64, "state_dir": "/s", "transfer": "mooncake", "cpu": cpu}
    group = {"bootstrap_port": 2, "cp": 2, "layout": "shared", "split": "page-interleave", "chunk": 64}
    for data in (prefill_data(**common, **group), decode_data(**common)):
        assert without(data.flags, parse_engine_argv(data.flags), table=TABLE) == []
        assert set(CPU_FLAGS) <= set(data.flags) or not cpu
