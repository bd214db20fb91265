"""Which models the shared layout serves."""

from __future__ import annotations

from plait.contract.shape import ModelShape
from plait.contract.violation import ContractError, Violation

SHOWN_ARCHITECTURES = ("GlmMoeDsaForCausalLM", "DeepseekV32ForCausalLM")
"""Architectures that run the one model code (the engine's deepseek_v2.py) which Plait's tests run."""


def validate_model(shape: ModelShape, *, path: str) -> list[Violation]:
    """Violations of a model's shape; fields are named `<path>.<config field>`."""
    found: list[Violation] = []

    def refuse(name: str, value: object, reason: str, fix: str) -> None:
        found.append(Violation(f"{path}.{name}", value, reason, fix))

    known = " or ".join(SHOWN_ARCHITECTURES)
    if not shape.is_dsa:
        reason = "not a model with DeepSeek Sparse Attention (DSA): it has no index cache to share"
        refuse("architectures", shape.architecture, reason, f"a {known} model with index_topk")
    elif shape.architecture not in SHOWN_ARCHITECTURES:
        refuse("architectures", shape.architecture, "this DSA model has not been shown", f"a {known} model")
    if shape.shares_index:
        name = next(
            field
            for field, on in (
                ("index_topk_freq", shape.index_topk_freq > 1),
                ("index_topk_pattern", "S" in shape.index_topk_pattern),
                ("cli_factor", shape.cli_factor > 1),
            )
            if on
        )
        reason = "layers that reuse an earlier layer's selection (IndexShare) have not been shown"
        refuse(name, getattr(shape, name), reason, "a model that selects in every layer")
    if shape.is_dsa:
        try:
            shape.rows("fp8_e4m3")
        except ContractError as error:
            found.extend(v._replace(field=f"{path}.{v.field}") for v in error.violations)
    return found
