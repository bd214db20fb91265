import dataclasses

import pytest

from plait.contract.families import FAMILIES
from plait.contract.weights import bytes_per_rank, parameters


@pytest.mark.parametrize(
    ("family", "published"),
    # DeepSeek-V3.2's files hold 685.397 G values; of these 13.4 G are the draft layer, with its own embedding
    # and head, and 0.04 G the scales of blocks. GLM-5 is published as 744 G.
    [("deepseek-v3.2", 671.96e9), ("glm-5", 744e9), ("glm-5-fp8", 744e9)],
)
def test_parameters_are_the_published_ones(family: str, published: float) -> None:
    assert parameters(FAMILIES[family]) == pytest.approx(published, rel=2e-3)


def test_a_group_shares_out_the_routed_experts_only() -> None:
    shape = FAMILIES["glm-5-fp8"]
    routed = 3 * 6144 * 2048 * 256 * 75
    one, eight = (bytes_per_rank(shape, ranks=n) for n in (1, 8))
    assert one is not None
    assert eight is not None
    assert one - eight == routed - routed // 8


def test_fp8_halves_what_it_reaches() -> None:
    half, whole = (bytes_per_rank(FAMILIES[f], ranks=8) for f in ("glm-5-fp8", "glm-5"))
    assert half is not None
    assert whole is not None
    assert whole == pytest.approx(2 * half, rel=0.05)
    assert half < whole < 2 * half


def test_it_says_nothing_where_it_cannot_know() -> None:
    shape = FAMILIES["glm-5"]
    unsized = dataclasses.replace(shape, n_routed_experts=0, intermediate_size=0)
    assert (bytes_per_rank(unsized, ranks=8), parameters(unsized)) == (None, 0)
    assert bytes_per_rank(dataclasses.replace(shape, quantization="awq"), ranks=8) is None
    assert bytes_per_rank(dataclasses.replace(shape, dtype="float4"), ranks=8) is None


def test_a_dense_model_has_no_experts_to_share_out() -> None:
    dense = dataclasses.replace(FAMILIES["glm-5"], n_routed_experts=0, n_shared_experts=0)
    assert bytes_per_rank(dense, ranks=2) == bytes_per_rank(dense, ranks=8) == 2 * parameters(dense)
