"""Pairing: equal contracts only, and a reason for every engine that serves nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plait.router.pairing import Candidate, Pair, Side, pairs, reasons


def engine(name: str, wire: str = "w", *, trouble: str = "") -> Candidate:
    return Candidate(name, Side.PREFILL if name.startswith("p") else Side.DECODE, wire, trouble)


def test_only_equal_contracts_are_paired() -> None:
    all_ = [engine("p0", "a"), engine("p1", "b"), engine("d0", "b"), engine("d1", "c")]
    assert pairs(all_) == [Pair("p1", "d0")]


def test_empty_contracts_are_never_equal() -> None:
    assert pairs([engine("p0", ""), engine("d0", "")]) == []


def test_engines_in_trouble_are_left_out() -> None:
    assert pairs([engine("p0", trouble="dead"), engine("d0")]) == []
    assert pairs([engine("p0"), engine("p1", trouble="dead"), engine("d0")]) == [Pair("p0", "d0")]


def test_no_engines() -> None:
    assert pairs([]) == []
    assert reasons([]) == {}


def test_every_pair_is_named() -> None:
    all_ = [engine("p0"), engine("p1"), engine("d0"), engine("d1")]
    assert pairs(all_) == [Pair("p0", "d0"), Pair("p0", "d1"), Pair("p1", "d0"), Pair("p1", "d1")]


_CANDIDATE = st.builds(
    Candidate,
    name=st.uuids().map(str),
    side=st.sampled_from(Side),
    wire_hash=st.sampled_from(["", "a", "b"]),
    trouble=st.sampled_from(["", "dead"]),
)


@given(st.lists(_CANDIDATE, max_size=8))
def test_pairs_and_reasons_agree(all_: list[Candidate]) -> None:
    by_name = {c.name: c for c in all_}
    found, why = pairs(all_), reasons(all_)
    assert {name for pair in found for name in pair} == {name for name, reason in why.items() if not reason}
    for pair in found:
        prefill, decode = (by_name[n] for n in pair)
        assert (prefill.side, decode.side) == (Side.PREFILL, Side.DECODE)
        assert prefill.wire_hash == decode.wire_hash != ""
        assert (prefill.trouble, decode.trouble) == ("", "")


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
