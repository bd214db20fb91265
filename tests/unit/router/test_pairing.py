"""Pairing: equal contracts only, least load first, equals in turn."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from plait.router.pairing import Candidate, Pair, Side, choose, pairs, reasons


def engine(name: str, wire: str = "w", *, trouble: str = "", load: int = 0, picked: int = 0) -> Candidate:
    side = Side.PREFILL if name.startswith("p") else Side.DECODE
    return Candidate(name, side, wire, trouble, load, picked)


def test_only_equal_contracts_are_paired() -> None:
    all_ = [engine("p0", "a"), engine("p1", "b"), engine("d0", "b"), engine("d1", "c")]
    assert pairs(all_) == [Pair("p1", "d0")]
    assert choose(all_) == Pair("p1", "d0")


def test_empty_contracts_are_never_equal() -> None:
    assert choose([engine("p0", ""), engine("d0", "")]) is None


def test_engines_in_trouble_are_left_out() -> None:
    assert choose([engine("p0", trouble="dead"), engine("d0")]) is None
    assert choose([engine("p0"), engine("p1", trouble="dead", load=-1), engine("d0")]) == Pair("p0", "d0")


def test_no_engines() -> None:
    assert choose([]) is None
    assert reasons([]) == {}


def test_least_load_first() -> None:
    all_ = [engine("p0", load=2), engine("p1", load=1), engine("d0", load=3), engine("d1", load=5)]
    assert choose(all_) == Pair("p1", "d0")


def test_load_counts_only_among_those_that_have_a_partner() -> None:
    assert choose([engine("p0", "a", load=0), engine("p1", "b", load=9), engine("d0", "b")]) == Pair(
        "p1", "d0"
    )


def test_equals_take_turns() -> None:
    all_ = {n: engine(n) for n in ("p0", "p1", "d0", "d1", "d2")}
    served: Counter[str] = Counter()
    for turn in range(1, 31):
        pair = choose(list(all_.values()))
        assert pair is not None
        for name in pair:
            all_[name] = all_[name]._replace(picked=turn)
            served[name] += 1
    assert served == {"p0": 15, "p1": 15, "d0": 10, "d1": 10, "d2": 10}


_CANDIDATE = st.builds(
    Candidate,
    name=st.uuids().map(str),
    side=st.sampled_from(Side),
    wire_hash=st.sampled_from(["", "a", "b"]),
    trouble=st.sampled_from(["", "dead"]),
    in_flight=st.integers(0, 3),
    picked=st.integers(0, 3),
)


@given(st.lists(_CANDIDATE, max_size=8))
def test_choice_and_reasons_agree(all_: list[Candidate]) -> None:
    by_name = {c.name: c for c in all_}
    pair, why = choose(all_), reasons(all_)
    assert (pair is None) == all(why.values())
    if pair is not None:
        prefill, decode = (by_name[n] for n in pair)
        assert (prefill.side, decode.side) == (Side.PREFILL, Side.DECODE)
        assert prefill.wire_hash == decode.wire_hash != ""
        assert not (prefill.trouble)
        assert not (decode.trouble)
        assert not (why[pair.prefill])
        assert not (why[pair.decode])


def test_reasons_name_what_is_wrong() -> None:
    why = reasons(
        [engine("p0", "aaaa"), engine("p1", ""), engine("p2", trouble="it is dead"), engine("d0", "bbbb")]
    )
    assert "contract aaaa (theirs: bbbb)" in why["p0"]
    assert "wire_hash is empty" in why["p1"]
    assert why["p2"] == "it is dead"
    assert "contract bbbb (theirs: aaaa)" in why["d0"]
    assert reasons([engine("p0"), engine("d0", trouble="x")])["p0"] == "no decode engine is ready"
    assert reasons([engine("p0"), engine("d0")]) == {"p0": "", "d0": ""}
