"""Names and reasons of the engine features that are refused, so that a refusal says more than 'not shown'."""

from __future__ import annotations

import fnmatch
from typing import NamedTuple


class Feature(NamedTuple):
    """A refused engine feature. `fields`: names, or patterns with `*`, of the fields that turn it on."""

    name: str
    reason: str
    fields: tuple[str, ...]

    def holds(self, field: str) -> bool:
        """Whether `field` belongs to this feature."""
        return any(fnmatch.fnmatchcase(field, pattern) for pattern in self.fields)


FEATURES = (
    Feature(
        "speculative decoding",
        "draft layers have no place in the shared layout yet",
        ("speculative_*", "spec_trace_dir", "enable_multi_layer_eagle", "decoupled_spec_*"),
    ),
    Feature(
        "hierarchical cache",
        "the host tier does not know page owners yet",
        (
            "enable_hierarchical_cache",
            "hicache_*",
            "enable_lmcache",
            "lmcache_*",
            "enable_flexkv",
            "flexkv_*",
            "disaggregation_decode_enable_offload_kvcache",
        ),
    ),
    Feature(
        "hierarchical sparse attention",
        "it moves pages that their owners count on",
        ("enable_hisparse", "hisparse_config"),
    ),
    Feature(
        "DSA cache layer split",
        "it shares the cache by layers, Plait by pages: one of the two",
        ("enable_dsa_cache_layer_split",),
    ),
    Feature("decode context parallelism", "decode receives plain full pages", ("dcp_*",)),
    Feature("pipeline parallelism", "its stages hold only some layers of a page", ("pp_*",)),
    Feature(
        "data-parallel attention",
        "a group shares one cache over all its ranks: run more groups instead",
        ("dp_size", "enable_dp_attention*", "enable_dp_lm_head", "load_balance_method"),
    ),
    Feature(
        "attention tensor parallelism",
        "every rank of a group attends with all heads, over its own tokens",
        ("enable_cp_decode_attn_tp", "enable_attn_tp_input_scattered", "disable_attn_tp_gather"),
    ),
    Feature(
        "the legacy context-parallel switches",
        "token round-robin and in-seq splits spread a page over ranks, so that no rank could own it",
        ("enable_dsa_prefill_context_parallel", "enable_prefill_context_parallel", "*prefill_cp_mode"),
    ),
    Feature(
        "expert parallelism",
        "only tensor-parallel experts have been shown",
        ("ep_*", "*_ep_*", "moe_a2a_backend"),
    ),
    Feature("mixed chunk", "a prefill engine's batch holds no decode rows", ("enable_mixed_chunk",)),
    Feature(
        "batch overlap",
        "two batches in flight would share one dense scratch",
        ("enable_two_batch_overlap", "enable_single_batch_overlap", "tbo_*", "enable_pdmux", "pdmux_*"),
    ),
    Feature(
        "CUDA graphs of this phase",
        "a graph would replay the page tables of another batch",
        ("cuda_graph_*", "*_cuda_graph", "enable_torch_compile*", "torch_compile_max_bs"),
    ),
    Feature(
        "LoRA",
        "cached pages do not name the adapter that wrote them in the contract",
        ("enable_lora*", "lora_*", "max_lora*", "experts_shared_outer_loras"),
    ),
    Feature(
        "sessions",
        "a session's pages outlive its requests, which the page accounting does not know",
        ("enable_streaming_session", "enable_session_radix_cache"),
    ),
    Feature(
        "another radix cache",
        "page owners follow the engine's default radix tree",
        ("radix_cache_backend", "radix_eviction_policy", "strip_thinking_cache"),
    ),
    Feature(
        "another page layout or memory pool",
        "pools are laid out by page owners",
        (
            "enable_page_major_kv_layout",
            "enable_unified_memory",
            "prefill_only_disable_kv_cache",
            "enable_memory_saver",
            "disaggregation_decode_enable_radix_cache",
            "kv_canary*",
        ),
    ),
    Feature(
        "optimistic prefill",
        "a forward before the bootstrap would own pages that no transfer waits for",
        ("optimistic_prefill_attempts",),
    ),
    Feature(
        "overriding the model's config",
        "the contract is read from config.json, which this would change behind its back",
        ("json_model_override_args", "decrypted_config_file", "model_config_parser"),
    ),
    Feature(
        "other schedules",
        "the ranks and the scratch budget count on the default order of requests",
        (
            "schedule_policy",
            "*priority*",
            "enable_dynamic_chunking",
            "*prefill_delayer*",
            "min_free_slots_delay",
            "num_continuous_decode_steps",
            "scheduler_recv_interval",
        ),
    ),
    Feature("more than one node", "peers of one group live on one machine so far", ("nnodes", "node_rank")),
    Feature(
        "multimodal input", "only text has been shown", ("enable_multimodal", "mm_*", "encoder_*", "*_mm_*")
    ),
    Feature(
        "cutting prompts to fit",
        "a prompt that cannot fit is answered with an error that names the limit",
        ("allow_auto_truncate",),
    ),
    Feature("KV events", "they would name logical pages as if each rank held them", ("kv_events_config",)),
)


def feature_of(field: str) -> Feature | None:
    """The refused feature that `field` belongs to, or None when it has no name of its own here."""
    return next((feature for feature in FEATURES if feature.holds(field)), None)
