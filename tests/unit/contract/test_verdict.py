"""The forms of termination messages: they fit, survive the way, and anything else is told apart."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.contract.verdict import (
    MESSAGE_LIMIT,
    CheckResult,
    Inspected,
    Trouble,
    UnreadableError,
    Verdict,
    cut,
    read_inspected,
    read_verdict,
)

TEXT = st.text(max_size=3000) | st.text('\x00\n"\\é😀', max_size=3000)
CHECKS = st.lists(st.builds(CheckResult, name=TEXT, ok=st.booleans(), value=TEXT, reason=TEXT, fix=TEXT))


@given(CHECKS)
def test_a_verdict_fits_a_message_and_stays_json(checks: list[CheckResult]) -> None:
    verdict = Verdict.of(checks)
    text = verdict.message()
    assert len(text.encode()) <= MESSAGE_LIMIT
    assert "\n" not in text
    read = read_verdict(text)
    assert read.ok == verdict.ok == (bool(checks) and all(c.ok for c in checks))
    assert len(read.failed) == min(16, len(verdict.failed))


def test_short_texts_are_not_cut() -> None:
    checks = [
        CheckResult(name=f"check {n}", ok=False, value="v" * 40, reason="r" * 40, fix="f" * 40)
        for n in range(16)
    ]
    assert read_verdict(Verdict.of(checks).message()).checks == checks


def test_failed_checks_keep_the_most_words() -> None:
    good = [CheckResult(name=f"good {n}", ok=True, value="v" * 500) for n in range(8)]
    bad = CheckResult(name="bad", ok=False, value="x", reason="why " * 200, fix="do this " * 30)
    read = read_verdict(Verdict.of([*good, bad]).message())
    assert read.failed[0].fix == bad.fix.strip()
    assert all(len(check.value) <= 200 for check in read.checks if check.ok)


def test_of_many_checks_the_failed_ones_are_told() -> None:
    checks = [CheckResult(name=f"c{n}", ok=n != 39) for n in range(40)]
    read = read_verdict(Verdict.of(checks).message())
    assert [c.name for c in read.failed] == ["c39"]
    assert not read.ok


def test_no_checks_are_no_pass() -> None:
    assert not Verdict.of([]).ok


def test_form_of_the_json() -> None:
    told = json.loads(Verdict.of([CheckResult(name="a", ok=True, skipped=True, reason="cpu")]).message())
    assert told == {
        "version": 1,
        "ok": True,
        "checks": [{"name": "a", "ok": True, "skipped": True, "value": "", "reason": "cpu", "fix": ""}],
    }


def test_fields_of_a_newer_runtime_are_passed_over() -> None:
    text = '{"version":2,"ok":true,"checks":[{"name":"a","ok":true,"seconds":3}],"node":"n"}'
    assert read_verdict(text).checks == [CheckResult(name="a", ok=True)]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("exec: python3: not found", "not found"),
        ("[]", "not a verdict"),
        ('{"checks": []}', "ok: Field required"),
        ('{"version":1,"ok":true,"checks":[{"name":"a"', "not a verdict"),
    ],
)
def test_what_is_no_verdict(message: str, says: str) -> None:
    with pytest.raises(UnreadableError, match=says):
        read_verdict(message)


def test_an_inspection_is_whole_or_refused() -> None:
    inspected = Inspected(ok=True, config={"hidden_size": 64, "architectures": ["A"]})
    assert read_inspected(inspected.message()) == inspected
    with pytest.raises(ValueError, match="a message holds"):
        Inspected(ok=True, config={"rope_scaling": "x" * MESSAGE_LIMIT}).message()


@given(st.lists(st.builds(Trouble, field=TEXT, value=TEXT, reason=TEXT, fix=TEXT), max_size=30))
def test_errors_of_an_inspection_fit(errors: list[Trouble]) -> None:
    text = Inspected(ok=False, errors=errors).message()
    assert len(text.encode()) <= MESSAGE_LIMIT
    assert not read_inspected(text).ok
    assert bool(read_inspected(text).errors) == bool(errors)


def test_cut() -> None:
    assert cut("a\n b\tc", 10) == "a b c"
    assert cut("0123456789", 10) == "0123456789"
    assert cut("0123456789A", 10) == "012345…89A"
    assert cut("0123456789A", 7) == ""
