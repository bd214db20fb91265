"""The tiny shape keeps real KV rows and refuses what no engine could run."""

from __future__ import annotations

import pytest

from plait.model.shape import VOCAB_SIZE, ShapeError, TinyShape, config_json


def test_kv_rows_have_the_size_of_the_big_model() -> None:
    config = config_json(TinyShape())
    assert config["kv_lora_rank"] + config["qk_rope_head_dim"] == 576
    assert config["index_head_dim"] == 128
    assert config["num_nextn_predict_layers"] == 0
    assert config["vocab_size"] == VOCAB_SIZE


def test_the_options_reach_the_config() -> None:
    config = config_json(TinyShape(topk=4096, index_heads=32, layers=5, context=2048))
    assert config["index_topk"] == 4096
    assert config["index_n_heads"] == 32
    assert config["num_hidden_layers"] == 5
    assert config["max_position_embeddings"] == 2048


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_widths_and_heads_split_over_the_ranks_without_padding(ranks: int) -> None:
    config = config_json(TinyShape())
    assert config["num_attention_heads"] % ranks == 0
    assert config["intermediate_size"] % (32 * ranks) == 0
    assert config["moe_intermediate_size"] % (32 * ranks) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topk", 0),
        ("index_heads", 8),
        ("layers", 1),
        ("seed", -1),
        ("context", 64),
        ("moe_width", 128),
        ("heads", 6),
        ("experts", 1),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(ShapeError, match=f"{field}={value}: must be"):
        TinyShape(**{field: value})
