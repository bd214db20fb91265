"""How many bytes of weights one rank holds, by the model's shape: an estimate, for planning before a start.

Parameters per layer, for hidden size h, H heads, ranks q and c of the low-rank projections, r rope, n nope
and v value dimensions, I index heads of d:

    attention  h·q + q·H·(n + r) + h·(c + r) + c·H·(n + v) + H·v·h    (q = 0: h·H·(n + r) for the first two)
    indexer    (q or h)·I·d + h·d + h·I
    dense MLP  3·h·intermediate_size                              in the first `first_k_dense_replace` layers
    experts    3·h·moe_intermediate_size each, and h per routed expert for their gate, in the others

and 2·vocab·h for embedding and head. Norms, biases and the scales of quantised blocks are left out (below one
in a thousand), draft layers too: Plait does not run them. A group has attention tensor parallelism 1, so its
ranks share out the routed experts and each holds all the rest.
"""

from __future__ import annotations

from plait.contract.shape import ModelShape

_FP8, _BF16 = 1, 2
_WIDTH = {"": _BF16, "auto": _BF16, "bfloat16": _BF16, "float16": _BF16, "float32": 4}


def parameters(shape: ModelShape) -> int:
    """All parameters of the model, without draft layers; 0 where the shape does not say its MLP sizes."""
    if not _sized(shape):
        return 0
    return _linear(shape) + _routed(shape) + _whole_precision(shape)


def bytes_per_rank(shape: ModelShape, *, ranks: int) -> int | None:
    """Bytes of weights on each of `ranks` GPUs of a group.

    None where they cannot be told: a shape without its MLP sizes, or a quantisation other than FP8.
    """
    if not _sized(shape) or shape.quantization not in ("", "fp8") or shape.dtype not in _WIDTH:
        return None
    plain = _WIDTH[shape.dtype]
    linear = _FP8 if shape.quantization == "fp8" else plain
    routed = -(-_routed(shape) // ranks)
    return (_linear(shape) + routed) * linear + _whole_precision(shape) * plain


def _sized(shape: ModelShape) -> bool:
    moe = _moe_layers(shape) == 0 or (shape.n_routed_experts > 0 and shape.moe_intermediate_size > 0)
    return moe and (_dense_layers(shape) == 0 or shape.intermediate_size > 0)


def _dense_layers(shape: ModelShape) -> int:
    if shape.n_routed_experts == 0:
        return shape.num_hidden_layers
    return min(shape.first_k_dense_replace, shape.num_hidden_layers)


def _moe_layers(shape: ModelShape) -> int:
    return shape.num_hidden_layers - _dense_layers(shape)


def _linear(shape: ModelShape) -> int:
    """Parameters that quantisation reaches and every rank holds."""
    h, heads = shape.hidden_size, shape.num_attention_heads
    query = heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)
    attention = h * (shape.kv_lora_rank + shape.qk_rope_head_dim)
    attention += shape.kv_lora_rank * heads * (shape.qk_nope_head_dim + shape.v_head_dim)
    attention += heads * shape.v_head_dim * h
    attention += shape.q_lora_rank * (h + query) if shape.q_lora_rank else h * query
    indexer = (shape.q_lora_rank or h) * shape.index_n_heads * shape.index_head_dim + h * shape.index_head_dim
    dense = 3 * h * shape.intermediate_size * _dense_layers(shape)
    shared = 3 * h * shape.moe_intermediate_size * shape.n_shared_experts * _moe_layers(shape)
    return (attention + indexer) * shape.num_hidden_layers + dense + shared


def _routed(shape: ModelShape) -> int:
    return 3 * shape.hidden_size * shape.moe_intermediate_size * shape.n_routed_experts * _moe_layers(shape)


def _whole_precision(shape: ModelShape) -> int:
    """Parameters that stay in the model's own type: embedding, head, gates, weights of the index heads."""
    gates = shape.hidden_size * shape.n_routed_experts * _moe_layers(shape)
    index = shape.hidden_size * shape.index_n_heads * shape.num_hidden_layers
    return 2 * shape.vocab_size * shape.hidden_size + gates + index
