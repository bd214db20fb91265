"""Compare answers: to the last bit between layouts, within the issue's bounds against stock."""

from __future__ import annotations

from typing import NamedTuple

from harness.ask import Answer

TOLERANCE = 5e-3
CLEAR_GAP = 1e-2


def same_bits(one: Answer, other: Answer, *, what: str) -> None:
    """Ids and all top logprobs equal to the last bit."""
    assert one.ids == other.ids, f"{what}: ids {one.ids} and {other.ids}"
    assert one.top == other.top, f"{what}: logprobs differ by {_worst(one, other)}"


class Against(NamedTuple):
    """How far an answer could be compared with stock's: `ended` if stock's own choice was too close."""

    worst: float
    ended: bool


def against_stock(stock: Answer, ours: Answer, *, what: str, tolerance: float = TOLERANCE) -> Against:
    """Top logprobs within `tolerance`, greedy tokens equal while stock's gap between its two best is clear.

    At a smaller gap another token is no fault, and what follows another token cannot be compared.
    """
    worst = 0.0
    for step, (expected, found) in enumerate(zip(stock.top, ours.top, strict=True)):
        values = dict(found)
        for rank, (token, value) in enumerate(expected):
            if token in values:
                off = abs(values[token] - value)
            else:
                # A token at the edge of the list may be missing where the next one is as good.
                assert rank > 0, f"{what}, token {step}: stock's best {token} is not among ours {found}"
                off = max(0.0, found[-1][1] - value)
            worst = max(worst, off)
            assert off <= tolerance, (
                f"{what}, token {step}: {token} is off by {off:.2e} ({expected}, {found})"
            )
        if expected[0][1] - expected[1][1] <= CLEAR_GAP:
            return Against(worst, ended=True)
        assert stock.ids[step] == ours.ids[step], f"{what}, token {step}: {stock.ids} and {ours.ids}"
    return Against(worst, ended=False)


def _worst(one: Answer, other: Answer) -> float:
    return max(
        abs(a[1] - b[1]) for x, y in zip(one.top, other.top, strict=False) for a, b in zip(x, y, strict=False)
    )
