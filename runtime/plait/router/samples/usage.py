"""The token counts of n single-sample answers as those of one answer with n samples.

SGLang's usage_processor.py: a prompt's tokens (and what of them was cached) count once, from its first
sample; what was generated counts for every sample.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from plait.router.samples.errors import MergeError
from plait.router.samples.spans import Edit, edited, members

_SUMMED = ("completion_tokens", "reasoning_tokens")


def merged_usage(usages: Sequence[str]) -> str:
    """The `usage` objects (JSON text) of all samples in one: the first one's, with sums put in.

    Raises MergeError where one is no object or a count is no whole number.
    """
    counts = [_counts(sample, text) for sample, text in enumerate(usages)]
    sums = {
        name: sum(_count(sample, each, name) for sample, each in enumerate(counts))
        for name in _SUMMED
        if counts[0].get(name) is not None
    }
    if "total_tokens" in counts[0]:
        sums["total_tokens"] = _count(0, counts[0], "prompt_tokens") + sums.get("completion_tokens", 0)
    first = usages[0]
    return edited(first, [Edit(m.start, m.end, str(sums[m.key])) for m in members(first) if m.key in sums])


def _counts(sample: int, text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise MergeError(sample, "'usage' is no object")
    return value


def _count(sample: int, usage: dict[str, Any], name: str) -> int:
    value = usage.get(name, 0)
    if value is None:
        return 0
    if type(value) is not int:
        raise MergeError(sample, f"'usage.{name}' is no whole number")
    return value
