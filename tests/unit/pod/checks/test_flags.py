"""The engine's own refusals, each with its fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from plait.pod.asked import Asked
from plait.pod.checks import flags


def test_what_the_engine_takes(asked: Callable[..., Asked]) -> None:
    (prefill,), (decode,) = flags.check(asked()), flags.check(asked(role="decode"))
    assert prefill.ok, prefill
    assert decode.ok, decode


def test_a_secret_is_not_told(asked: Callable[..., Asked]) -> None:
    question = asked()
    flags_ = (*question.flags, "--api-key", "first", "--api-key", "second")
    (result,) = flags.check(replace(question, flags=flags_))
    assert result.name == "flags:--api-key"
    assert not {"first", "second"} & set(str(result).replace("'", " ").split())


def test_each_violation_is_a_result(asked: Callable[..., Asked]) -> None:
    results = flags.check(asked(flags=("--page-size", "32", "--tp-sice", "2"), env={"PLAIT_SPLIT": "no"}))
    names = [result.name for result in results]
    assert {"flags:--tp-sice", "flags:PLAIT_SPLIT"} <= set(names)
    assert all(not r.ok and r.reason and r.fix for r in results)
    assert next(r for r in results if r.name == "flags:--tp-sice").value == "2"
