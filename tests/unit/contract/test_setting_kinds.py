from enum import StrEnum

import pytest

from plait.contract.setting_kinds import FAULT, BadValueError, Fault, GatherPath, choice, seconds


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


def test_choice_gives_members_and_names_the_nearest() -> None:
    kind = choice(Colour)
    assert kind.parse("red") is Colour.RED
    with pytest.raises(BadValueError) as caught:
        kind.parse("gren")
    assert caught.value.fix == "green"


def test_seconds_keep_their_bounds() -> None:
    kind = seconds(least=1, most=2)
    assert (kind.parse("1"), kind.parse("2")) == (1.0, 2.0)
    for text in ("0.99", "2.01", "-inf", ""):
        with pytest.raises(BadValueError):
            kind.parse(text)


def test_fault_argument_may_hold_colons() -> None:
    assert FAULT.parse("drop-page:1:2") == Fault("drop-page", "1:2")
    assert str(Fault("drop-page", "1:2")) == "drop-page:1:2"
    assert str(Fault("drop-page")) == "drop-page"


def test_paths_that_read_what_is_mapped() -> None:
    assert {path.value for path in GatherPath if path.needs_peers} == {"copy", "pull", "peer-view"}
