"""Weights follow the seed, match the config, and make the KV contents matter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from plait.model.shape import TinyShape, config_json
from plait.model.weights import MIN_STD, tiny_weights
from plait.model.write import write_tiny


def test_equal_shapes_give_equal_bytes_and_another_seed_does_not() -> None:
    first, again, other = (tiny_weights(TinyShape(seed=seed)) for seed in (3, 3, 4))
    assert first.keys() == again.keys() == other.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_no_matrix_is_so_small_that_attention_would_not_show() -> None:
    for name, tensor in tiny_weights(TinyShape()).items():
        if tensor.dim() == 2:
            assert tensor.float().std().item() > 0.9 * MIN_STD, name


def test_projection_shapes_follow_the_config() -> None:
    shape = TinyShape(index_heads=24, layers=4)
    config, weights = config_json(shape), tiny_weights(shape)
    attention = "model.layers.3.self_attn."
    rows = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    assert weights[attention + "kv_a_proj_with_mqa.weight"].shape == (rows, config["hidden_size"])
    assert weights[attention + "indexer.wq_b.weight"].shape == (24 * 128, config["q_lora_rank"])
    assert weights["model.layers.0.mlp.up_proj.weight"].shape[0] == config["intermediate_size"]
    last = weights["model.layers.3.mlp.experts.7.up_proj.weight"]
    assert last.shape == (config["moe_intermediate_size"], config["hidden_size"])


_ODDS = """
import sys
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
draw = torch.Generator().manual_seed(1)
ids = torch.randint(4, 512, (1, 200), generator=draw)
changed = ids.clone()
changed[0, :64] = torch.randint(4, 512, (64,), generator=draw)
with torch.no_grad():
    before, after = (model(batch).logits[0, 164:].log_softmax(-1) for batch in (ids, changed))
assert ((before - after).abs().amax(-1) > 1.0).all(), "other tokens 100 positions back change nothing"
# Greedy choices must be clear enough to compare: the best logit stands out from the mass.
assert ((before.amax(-1) - before.median(-1).values) > 5.0).all(), "no choice is clear"
"""


def test_what_the_cache_holds_decides_the_output(tmp_path: Path) -> None:
    """In an independent implementation, other tokens 100 positions back change the next-token odds.

    In a process of its own: the engine, once imported by another test, patches that implementation.
    """
    folder = tmp_path / "tiny"
    write_tiny(folder, TinyShape())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ODDS, str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
