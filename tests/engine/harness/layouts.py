"""The comparison that everything else rests on: the same prompts on both layouts, equal to the last bit."""

from __future__ import annotations

from collections.abc import Sequence

from harness.ask import Pair, Prompt, ask_pair
from harness.compare import same_bits
from harness.engines import Engine


def equal_on_both(
    shared: Engine,
    replicated: Engine,
    decode: Engine,
    prompts: Sequence[Prompt],
    *,
    what: str,
    new: int = 8,
    logprobs_from: int = -1,
) -> tuple[list[Pair], list[Pair]]:
    """Ask both prefill groups for `prompts` together; ids and logprobs of prefill and decode must be equal.

    The batches that were formed must be equal too, or the comparison would say nothing.
    """
    before = len(shared.batches()), len(replicated.batches())
    ours = ask_pair(shared, decode, prompts, new=new, logprobs_from=logprobs_from)
    theirs = ask_pair(replicated, decode, prompts, new=new, logprobs_from=logprobs_from)
    formed = shared.batches()[before[0] :], replicated.batches()[before[1] :]
    assert formed[0] == formed[1], f"{what}: the groups formed different batches {formed}"
    assert formed[0], f"{what}: no batch was formed"
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        same_bits(one.prefill, other.prefill, what=f"{what}[{index}], prefill")
        same_bits(one.decode, other.decode, what=f"{what}[{index}], decode")
        assert one.decode.ids[0] == one.prefill.ids[0], f"{what}[{index}]: decode starts with another token"
        assert one.prefill.cached == other.prefill.cached, f"{what}[{index}]: cached tokens differ"
    return ours, theirs
