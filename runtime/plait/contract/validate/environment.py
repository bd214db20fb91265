"""Environment variables of the stock engine that turn on what Plait refuses: no flag would show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from plait.contract.violation import Violation

_YES = ("true", "1", "yes", "y")
_NO = ("false", "0", "no", "n")


class _Rule(NamedTuple):
    """`refuses`: yes (a true value), no (a false value), set (any value but an empty one), untrue (whatever
    the engine does not read as true: a false value, an empty one, and what it only warns about)."""

    name: str
    refuses: str
    reason: str


_RULES = (
    _Rule(
        "SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER",
        "untrue",
        "every rank sends the pages it owns, so decode must ask all of them (unset, Plait sets it)",
    ),
    _Rule(
        "SGLANG_DISABLE_DSA_INDEXER_FUSION",
        "set",
        "it decides the stored form of index keys, on which prefill and decode must agree",
    ),
    _Rule("SGLANG_DISAGG_STAGING_BUFFER", "yes", "staging buffers send whole page lists, not owned pages"),
    _Rule("SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "set", "pools in custom memory have not been shown"),
    _Rule("SGLANG_ENABLE_CP_V2", "no", "Plait's split takes the place of the engine's CP-v2 strategy"),
    _Rule("SGLANG_ENABLE_UNIFIED_RADIX_TREE", "yes", "page owners follow the engine's default radix tree"),
    _Rule("SGLANG_EXPERIMENTAL_CPP_RADIX_TREE", "yes", "page owners follow the engine's default radix tree"),
    _Rule("SGLANG_RUST_SERVER", "yes", "Plait serves its status from the engine's Python server"),
    _Rule("SGLANG_USE_CPU_ENGINE", "yes", "it replaces the classes that Plait hooks"),
    _Rule("SGLANG_ENABLE_DSA_Q8KV8_BORN_FP8_Q", "yes", "its fused cache writes do not know page owners"),
    _Rule("SGLANG_ENABLE_DSA_Q8KV8_TOPK_LENGTH", "yes", "not shown with Plait's dense views"),
    _Rule("SGLANG_ENABLE_DSA_Q8KV8_QPREP_OVERLAP", "yes", "not shown with Plait's dense views"),
    _Rule("SGLANG_ENABLE_DSA_Q8KV8_KV_CAT_FUSION", "yes", "its fused cache writes do not know page owners"),
)


def validate_environment(environ: Mapping[str, str]) -> list[Violation]:
    """Violations in the stock engine's own variables."""
    found = []
    for rule in _RULES:
        value = environ.get(rule.name, "")
        text = value.strip().lower()
        hit = {
            "yes": text in _YES,
            "no": text in _NO,
            "set": bool(text),
            # Unstripped, as the engine reads it: with a blank around it, `true` is the default there.
            "untrue": rule.name in environ and value.lower() not in _YES,
        }
        if hit[rule.refuses]:
            found.append(Violation(rule.name, value, rule.reason, f"unset {rule.name}"))
    return found
