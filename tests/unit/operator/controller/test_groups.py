"""A router's answer as facts."""

from __future__ import annotations

from typing import Any

import pytest

from plait_operator.controller.groups import relevant, router_fact
from plait_operator.observed import EngineFact, RouterFact


def group(**change: Any) -> dict[str, Any]:
    return {
        "url": "http://10.0.0.1:30000", "side": "prefill", "role": "prefill", "reachable": True,
        "ready": True,
        "trouble": "", "age_s": 0.5, "identity": "uid-1/0", "draining": False, "in_flight": 3,
        "wire_hash": "w" * 64, "group_hash": "g" * 64,
        "capacity": {"tokens": 1000, "tokens_replicated": 125, "scratch_tokens": 10, "page_size": 64},
    } | change  # fmt: skip


def engine(**change: Any) -> EngineFact:
    fact = router_fact("r-1", ready=True, told={"ready": True, "pairs": [], "groups": [group(**change)]})
    assert fact.error == ""
    (found,) = fact.engines
    return found


def test_an_engine_in_rotation() -> None:
    assert engine() == EngineFact(
        identity="uid-1/0", taken_in=True, pairs=True, wire_hash="w" * 64, group_hash="g" * 64,
        tokens=1000, tokens_replicated=125, in_flight=3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "taken_in", "pairs"),
    [
        # The first of two waits for no partner to be let in.
        ({"ready": False, "trouble": "no decode with its contract"}, True, False),
        ({"reachable": False, "ready": False}, False, False),
        # A late answer or two: still in rotation. Some in a row: out of it.
        ({"reachable": False, "suspect": True}, True, True),
        ({"reachable": False, "suspect": True, "ready": False, "trouble": "no answer"}, False, False),
        ({"reachable": False, "suspect": True, "draining": True}, False, False),
        ({"draining": True}, False, False),
        ({"wire_hash": None, "role": None, "ready": False}, False, False),
        ({"wire_hash": "", "ready": False}, False, False),
        ({"role": "decode", "ready": False}, False, False),
        ({"capacity": None}, True, True),
    ],
)
def test_what_is_taken_in_and_what_pairs(change: dict[str, Any], taken_in: bool, pairs: bool) -> None:
    found = engine(**change)
    assert (found.taken_in, found.pairs) == (taken_in, pairs)


@pytest.mark.parametrize("tokens", [-1, 1e300, 10**30])
def test_figures_out_of_all_range_are_not_believed(tokens: float) -> None:
    assert engine(capacity={"tokens": tokens, "tokens_replicated": 7}).tokens == 0


def test_an_engines_trouble_is_one_line_of_bounded_length() -> None:
    found = engine(trouble="Traceback:\n  x\n" + "y" * 100_000)
    assert found.trouble.startswith("Traceback: x y")
    assert len(found.trouble) == 600


def test_engines_that_no_pod_is_behind_are_left_out() -> None:
    assert router_fact("r", ready=True, told={"groups": [group(identity="")]}).engines == ()


@pytest.mark.parametrize(
    "told",
    [None, [], {}, {"groups": None}, {"groups": [1]}, {"groups": [{"identity": "a", "in_flight": "x"}]}],
)
def test_an_answer_that_means_nothing_is_an_error_and_no_engines(told: Any) -> None:
    fact = router_fact("r", ready=True, told=told)
    assert fact.error
    assert fact.engines == ()


def test_only_what_decides_something_is_compared() -> None:
    def facts(in_flight: int, age_s: float) -> tuple[RouterFact, ...]:
        return (RouterFact("r", True, age_s, engines=(engine(in_flight=in_flight),)),)

    assert relevant(facts(3, 0.1)) == relevant(facts(900, 7.0))
    assert relevant(facts(0, 0.1)) != relevant(facts(1, 0.1)), "its last request has ended"
