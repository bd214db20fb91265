import pytest

from plait.contract.layouts import Role
from plait.contract.validate.constraints import (
    CONSTRAINTS,
    RESOLVED,
    RESOLVED_TOGETHER,
    TOGETHER,
    one_of,
)
from plait.contract.validate.engine_args import engine_args


def test_constrained_fields_exist() -> None:
    for rules in (*CONSTRAINTS.values(), RESOLVED):
        assert set(rules) <= set(engine_args().fields)
        assert all(rule.reason and rule.fix for rule in rules.values())


def test_fields_that_decide_over_each_other_exist() -> None:
    fields = engine_args().fields
    for each in (*TOGETHER[Role.PREFILL], *TOGETHER[Role.DECODE], *RESOLVED_TOGETHER):
        assert {each.field, each.other} <= set(fields)
        assert each.rule.reason
        assert each.rule.fix


def test_one_of_keeps_types_apart() -> None:
    rule = one_of(None, 1, reason="r")
    assert rule.allows(None)
    assert rule.allows(1)
    assert not rule.allows(True)
    assert not rule.allows(1.0)
    assert not rule.allows("1")
    assert rule.fix == "1"


@pytest.mark.parametrize(
    ("value", "good"),
    [
        (None, True),
        (64, True),
        (8192, True),
        (0, False),
        (-1, False),
        (100, False),
        (True, False),
        ("64", False),
    ],
)
def test_chunks_are_whole_pages(value: object, good: bool) -> None:
    assert CONSTRAINTS[Role.PREFILL]["chunked_prefill_size"].allows(value) is good
