"""Policies: limits first, then bounded load, then locality; pairs of equal contracts only."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.router.placement.hashing import PrefixKeys
from plait.router.placement.memory import PrefixMemory
from plait.router.placement.policy import SLACK, Placement, Policy, Why, choose, choose_pair
from plait.router.placement.views import View


def view(number: int, *, load: float = 0, picked: int = 0, **fields: Any) -> View:
    made = View(number, f"http://10.0.0.{number}:30000", wire=fields.pop("wire", "w"))
    made.load, made.in_flight, made.last_picked = load, math.ceil(load), picked
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def views(*loads: float) -> list[View]:
    return [view(number, load=load) for number, load in enumerate(loads, 1)]


def prompt(conversation: int, *, pages: int = 4, kind: int | None = None) -> PrefixKeys:
    blocks = tuple(conversation * 1_000 + page for page in range(pages))
    return PrefixKeys(
        random.Random(conversation).getrandbits(64), conversation if kind is None else kind, blocks
    )


def chosen(policy: Policy, able: list[View], *args: Any, **kwargs: Any) -> int:
    found = choose(policy, able, *args, **kwargs)
    assert found is not None
    return found.worker.id


# --- limits and ranks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", Policy)
def test_a_worker_at_its_limit_is_never_chosen(policy: Policy) -> None:
    full = [view(1, load=1, limit=1), view(2, load=3, limit=3)]
    assert choose(policy, full, prompt(1)) is None
    assert choose(policy, [], prompt(1)) is None
    for number in range(20):
        assert chosen(policy, [*full, view(3, load=9)], prompt(number), sticky=None) == 3


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("sticky", [None, "user-1"])
def test_suspects_and_those_tried_before_are_the_last_resort(policy: Policy, sticky: str | None) -> None:
    usual, suspect, tried = view(1, load=90), view(2, load=1, suspect=True), view(3)
    for number in range(20):
        keys = prompt(number)
        more: dict[str, Any] = {"sticky": sticky, "exclude": {3}}
        assert chosen(policy, [usual, suspect, tried], keys, **more) == 1
        assert chosen(policy, [suspect, tried], keys, **more) == 2
        assert chosen(policy, [tried], keys, **more) == 3


# --- policies without prefixes -----------------------------------------------------------------------------


def test_least_load_and_among_equals_the_one_picked_longest_ago() -> None:
    assert chosen(Policy.LEAST_LOAD, views(2, 1, 3)) == 2
    assert chosen(Policy.LEAST_LOAD, [view(1, picked=7), view(2, picked=3), view(3, load=1)]) == 2


def test_prompts_without_keys_go_by_load() -> None:
    assert chosen(Policy.PREFIX_AWARE, views(2, 1, 3), None, PrefixMemory()) == 2


def test_round_robin_takes_turns_whatever_the_load() -> None:
    all_ = views(9, 0, 4)
    served = []
    for turn in range(1, 10):
        found = choose(Policy.ROUND_ROBIN, all_)
        assert found is not None
        found.worker.last_picked = turn
        served.append(found.worker.id)
    assert served == [1, 2, 3] * 3


def test_random_is_even_and_can_be_seeded() -> None:
    all_ = views(9, 0, 4, 1)
    one, two = (
        [chosen(Policy.RANDOM, all_, rng=rng) for _ in range(800)] for rng in map(random.Random, (5, 5))
    )
    assert one == two
    assert min(Counter(one).values()) > 150


# --- prefix-aware ------------------------------------------------------------------------------------------


def test_processes_agree_without_shared_state() -> None:
    homes: Counter[int] = Counter()
    for number in range(400):
        keys = prompt(number)
        here = choose(Policy.PREFIX_AWARE, views(0, 1, 2, 1), keys, PrefixMemory())
        there = choose(Policy.PREFIX_AWARE, views(1, 0, 0, 2)[::-1], keys, PrefixMemory())
        assert here is not None
        assert there is not None
        assert here.worker.id == there.worker.id
        assert here.why is there.why is Why.HOME
        homes[here.worker.id] += 1
    assert min(homes.values()) > 60


def test_prompts_of_one_kind_have_one_home_until_they_are_many() -> None:
    memory, all_ = PrefixMemory(), views(0, 0, 0, 0)
    homes = [chosen(Policy.PREFIX_AWARE, all_, prompt(n, kind=5), memory) for n in range(200)]
    assert len(set(homes)) == 1
    for number in range(200):  # evenly noted, so that only the kind's share matters
        memory.note(prompt(number, kind=5), number % 4 + 1, computed=4)
    spread = Counter(
        chosen(Policy.PREFIX_AWARE, all_, prompt(n, kind=5), memory) for n in range(1_000, 1_400)
    )
    assert min(spread.values()) > 60


def test_the_owner_goes_before_the_home() -> None:
    memory = PrefixMemory()
    for number in range(40):
        keys = prompt(number)
        home = chosen(Policy.PREFIX_AWARE, views(0, 0, 0), keys, memory)
        owner = home % 3 + 1
        memory.note(keys, owner, computed=4)
        longer = keys._replace(blocks=(*keys.blocks, -1, -2))
        found = choose(Policy.PREFIX_AWARE, views(0, 0, 0), longer, memory)
        assert found is not None
        assert (found.worker.id, found.why, found.matched) == (owner, Why.OWNER, 4)


def test_an_owner_may_have_twice_the_load_of_others() -> None:
    memory = PrefixMemory()
    keys = prompt(1)
    memory.note(keys, 1, computed=4)
    # The cap of all is 1.25 times the mean with one more: 51 and 54 here.
    for own, expected in ((20, Why.OWNER), (60, Why.OWNER), (100, Why.OWNER), (110, Why.SPILL)):
        found = choose(Policy.PREFIX_AWARE, views(own, 20, 20, 20), keys, memory)
        assert found is not None
        assert found.why is expected
        assert (found.worker.id == 1) == (expected is Why.OWNER)


def kind(conversation: int) -> PrefixKeys:
    """A conversation of the kind with one long system prompt."""
    return prompt(conversation, kind=5)._replace(blocks=(*range(40, 52), conversation + 1_000))


def test_a_home_that_has_the_kind_cached_may_have_twice_the_load_too() -> None:
    home = chosen(Policy.PREFIX_AWARE, views(0, 0, 0, 0), kind(1), PrefixMemory())
    loads = [20.0] * 4
    loads[home - 1] = 60
    memory = PrefixMemory()
    assert chosen(Policy.PREFIX_AWARE, views(*loads), kind(2), memory) != home
    memory.note(kind(1), home, computed=13)
    found = choose(Policy.PREFIX_AWARE, views(*loads), kind(2), memory)
    assert found is not None
    assert (found.worker.id, found.why, found.matched) == (home, Why.HOME, 12)


def test_a_full_home_spills_to_who_has_the_kind_cached() -> None:
    home = chosen(Policy.PREFIX_AWARE, views(0, 0, 0, 0), kind(1), PrefixMemory())
    loads = [0.0] * 4
    loads[home - 1] = 50
    for other in {1, 2, 3, 4} - {home}:
        memory = PrefixMemory()
        memory.note(kind(1), other, computed=13)
        found = choose(Policy.PREFIX_AWARE, views(*loads), kind(2), memory)
        assert found is not None
        assert (found.worker.id, found.why) == (other, Why.SPILL)


def test_a_quiet_system_does_not_scatter() -> None:
    keys = prompt(1)
    home = chosen(Policy.PREFIX_AWARE, views(0, 0, 0, 0), keys, PrefixMemory())
    loads = [0.0] * 4
    loads[home - 1] = SLACK - 1
    assert chosen(Policy.PREFIX_AWARE, views(*loads), keys, PrefixMemory()) == home
    loads[home - 1] = SLACK
    found = choose(Policy.PREFIX_AWARE, views(*loads), keys, PrefixMemory())
    assert found is not None
    assert found.worker.id != home
    assert found.why is Why.SPILL


def test_a_full_home_spills_to_the_same_second_everywhere() -> None:
    keys = prompt(1)
    home = chosen(Policy.PREFIX_AWARE, views(0, 0, 0, 0), keys, PrefixMemory())
    seconds = set()
    for others in (0, 1, 2):
        loads = [float(others)] * 4
        loads[home - 1] = 50
        seconds.add(chosen(Policy.PREFIX_AWARE, views(*loads), keys, PrefixMemory()))
    assert len(seconds) == 1


def test_nobodys_prompts_go_to_those_that_had_less_of_late() -> None:
    memory, all_ = PrefixMemory(), views(0, 0, 0)
    for _ in range(60):
        for worker in (1, 2, 3):
            memory.note(prompt(worker), worker, computed=1)
    for _ in range(60):
        memory.note(prompt(1), 1, computed=1)
    places = Counter(chosen(Policy.PREFIX_AWARE, all_, prompt(n), memory) for n in range(1_000, 1_100))
    assert places[1] == 0
    assert min(places[2], places[3]) > 25
    assert chosen(Policy.PREFIX_AWARE, all_, prompt(1), memory) == 1  # its own stay


@given(
    st.lists(st.floats(0, 60), min_size=1, max_size=8),
    st.integers(0, 30),
    st.sampled_from([None, "user-1"]),
    st.floats(1, 3),
)
def test_nobody_is_chosen_for_locality_beyond_its_share(
    loads: list[float], number: int, sticky: str | None, bound: float
) -> None:
    found = choose(
        Policy.PREFIX_AWARE, views(*loads), prompt(number), PrefixMemory(), sticky=sticky, bound=bound
    )
    assert found is not None
    cap = max(SLACK, math.ceil(bound * (sum(loads) + 1) / len(loads)))
    assert found.worker.load < cap or found.worker.load == min(loads)


# --- sticky ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", Policy)
def test_a_sticky_header_goes_before_everything(policy: Policy) -> None:
    memory = PrefixMemory()
    keys = prompt(1)
    places: Counter[int] = Counter()
    for user in range(200):
        sticky = f"user-{user}"
        first = choose(policy, views(1, 0, 2, 0), keys, memory, sticky=sticky)
        again = choose(policy, views(0, 3, 0, 1), keys, memory, sticky=sticky)
        assert first is not None
        assert again is not None
        assert first.worker.id == again.worker.id
        assert first.why is again.why is Why.STICKY
        places[first.worker.id] += 1
    assert min(places.values()) > 25


def test_a_sticky_header_does_not_overload() -> None:
    home = chosen(Policy.LEAST_LOAD, views(0, 0, 0), sticky="user-1")
    loads = [0.0, 0.0, 0.0]
    loads[home - 1] = 40
    found = choose(Policy.LEAST_LOAD, views(*loads), sticky="user-1")
    assert found is not None
    assert found.worker.id != home
    assert found.why is Why.SPILL


# --- pairs -------------------------------------------------------------------------------------------------


def pair(*args: Any, policy: Policy = Policy.LEAST_LOAD, **kwargs: Any) -> tuple[int, int] | None:
    found: Placement[View] | None = choose_pair(policy, *args, **kwargs)
    return found and (found.prefill.id, found.decode.id)


def test_only_equal_contracts_are_paired() -> None:
    prefills = [view(1, wire="a"), view(2, wire="b", load=5)]
    assert pair(prefills, [view(3, wire="b"), view(4, wire="c")]) == (2, 3)
    assert pair(prefills, [view(4, wire="c")]) is None
    assert pair([view(1, wire="")], [view(3, wire="")]) is None
    assert pair([], [view(3)]) is None
    assert pair([view(1)], []) is None


def test_a_prefill_worker_whose_partners_are_full_is_no_candidate() -> None:
    prefills = [view(1, wire="a"), view(2, wire="b", load=5)]
    assert pair(prefills, [view(3, wire="a", load=2, limit=2), view(4, wire="b")]) == (2, 4)


def test_each_side_by_its_policy() -> None:
    prefills, decodes = (
        [view(1, load=3, picked=1), view(2, picked=9)],
        [view(3, load=3, picked=1), view(4, picked=9)],
    )
    for policy, decode_policy, expected in (
        (Policy.LEAST_LOAD, Policy.LEAST_LOAD, (2, 4)),
        (Policy.ROUND_ROBIN, Policy.LEAST_LOAD, (1, 4)),
        (Policy.LEAST_LOAD, Policy.ROUND_ROBIN, (2, 3)),
    ):
        assert pair(prefills, decodes, policy=policy, decode_policy=decode_policy) == expected


def test_a_sticky_header_decides_both_sides() -> None:
    prefills, decodes = [view(n) for n in range(1, 5)], [view(n) for n in range(5, 9)]
    pairs = {user: pair(prefills, decodes, sticky=f"user-{user}") for user in range(60)}
    for user, found in pairs.items():
        assert pair(prefills, decodes[::-1], sticky=f"user-{user}") == found
    assert len({p and p[0] for p in pairs.values()}) == len({p and p[1] for p in pairs.values()}) == 4


def test_decode_prefix_aware_is_the_home_of_the_prompt() -> None:
    memory = PrefixMemory()
    prefills, decodes = [view(n) for n in range(1, 3)], [view(n) for n in range(5, 9)]
    places = set()
    for number in range(40):
        first, again = (
            pair(prefills, each, prompt(number), memory, decode_policy=Policy.PREFIX_AWARE)
            for each in (decodes, decodes[::-1])
        )
        assert first == again
        places.add(first and first[1])
    assert places == {5, 6, 7, 8}


def test_what_is_known_of_the_prompt_is_told() -> None:
    memory = PrefixMemory()
    memory.note(prompt(1, pages=4), 1, computed=4)
    found = choose_pair(Policy.PREFIX_AWARE, [view(1), view(2)], [view(3)], prompt(1, pages=70), memory)
    assert found is not None
    assert (found.prefill.id, found.why, found.matched, found.pages) == (1, Why.OWNER, 4, 64 + 6 * 16)
    assert found.computed == 156
    assert found.work == 1 + 156 / 64
    plain = choose_pair(Policy.LEAST_LOAD, [view(1)], [view(3)])
    assert plain is not None
    assert (plain.why, plain.matched, plain.pages, plain.work) == (Why.POLICY, 0, 0, 1)


def test_a_retry_takes_another_pair_while_there_is_one() -> None:
    prefills, decodes = [view(1), view(2, load=9)], [view(3), view(4, load=9)]
    assert pair(prefills, decodes) == (1, 3)
    assert pair(prefills, decodes, exclude={1}) == (2, 3)
    assert pair(prefills, decodes, exclude={3}) == (1, 4)
    assert pair(prefills, decodes, exclude={1, 3}) == (2, 4)
    assert pair(prefills, decodes, exclude={1, 2}) == (1, 3)
    assert pair(prefills, decodes[:1], exclude={1, 3}) == (2, 3)


def test_a_pair_of_usual_workers_goes_before_a_suspect_one() -> None:
    prefills = [view(1, wire="a"), view(2, wire="b", load=9)]
    decodes = [view(3, wire="a", suspect=True), view(4, wire="b", load=9)]
    assert pair(prefills, decodes) == (2, 4)
    prefills[1].in_flight = prefills[1].limit
    assert pair(prefills, decodes) == (1, 3)


_VIEW = st.builds(
    lambda wire, load, limit, suspect: (wire, load, limit, suspect),
    st.sampled_from(["", "a", "b"]),
    st.integers(0, 3),
    st.integers(1, 3),
    st.booleans(),
)


@given(
    st.lists(_VIEW, max_size=4),
    st.lists(_VIEW, max_size=4),
    st.sets(st.integers(1, 14)),
    st.sampled_from(Policy),
    st.sampled_from([None, "user-1"]),
)
def test_a_pair_is_found_whenever_there_is_one_and_is_of_the_best_rank(
    first: list[Any], second: list[Any], exclude: set[int], policy: Policy, sticky: str | None
) -> None:
    def made(at: int, all_: list[Any]) -> list[View]:
        return [
            view(at + n, wire=wire, load=load, limit=limit, suspect=suspect)
            for n, (wire, load, limit, suspect) in enumerate(all_)
        ]

    def rank(each: View) -> int:
        return 2 if each.id in exclude else int(each.suspect)

    prefills, decodes = made(1, first), made(11, second)
    ranks = [
        max(rank(p), rank(d))
        for p in prefills
        for d in decodes
        if p.wire == d.wire != "" and p.in_flight < p.limit and d.in_flight < d.limit
    ]
    found = choose_pair(policy, prefills, decodes, prompt(1), PrefixMemory(), sticky=sticky, exclude=exclude)
    if not ranks:
        assert found is None
        return
    assert found is not None
    assert found.prefill.wire == found.decode.wire != ""
    assert found.prefill.in_flight < found.prefill.limit
    assert found.decode.in_flight < found.decode.limit
    assert max(rank(found.prefill), rank(found.decode)) == min(ranks)
