"""Every place where Plait meets stock SGLang 0.5.17, as data: no sglang here, so that tools can read it.

A target is a dotted name inside `sglang`. `parameters` is the exact parameter list the hook was written
against: an engine whose function has another one stops at start with a message that names both.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from plait.contract.layouts import Layout

ENGINE_VERSION = "0.5.17"


class Kind(StrEnum):
    """How a hook sits on its target."""

    AROUND = "around"
    AFTER = "after"
    BEFORE = "before"
    REPLACE = "replace"
    ITEM = "item"
    """An entry of a dict (`module.DICT[key]`), written `module.DICT:key`."""


class When(StrEnum):
    """Which processes need the hook."""

    ALWAYS = "always"
    """Any layout but off."""
    SPLITS = "splits"
    """Layouts in which page ownership decides the split: replicated and shared."""
    DEBUG = "debug"
    """PLAIT_DEBUG_CHECKS=1: records for tests and for the search of a wrong token."""
    CPU = "cpu"
    """PLAIT_CPU=1: what stock SGLang lacks without a GPU."""


class Target(NamedTuple):
    """One hook: where, how, against which signature, and why."""

    path: str
    kind: Kind
    parameters: tuple[str, ...] | None
    when: When
    why: str

    def wanted(self, *, layout: Layout, cpu: bool, debug: bool) -> bool:
        """Whether a process with these settings installs the hook."""
        if self.when is When.CPU:
            return cpu
        if self.when is When.DEBUG:
            return debug and layout is not Layout.OFF
        return layout.splits if self.when is When.SPLITS else layout is not Layout.OFF


def _target(path: str, kind: Kind, parameters: str | None, when: When, why: str) -> Target:
    names = None if parameters is None else tuple(parameters.split())
    return Target(f"sglang.srt.{path}", kind, names, when, why)


_A, _S, _C, _D = When.ALWAYS, When.SPLITS, When.CPU, When.DEBUG
_INIT_GROUP = (
    "self group_ranks local_rank torch_distributed_backend use_pynccl use_pymscclpp use_custom_allreduce "
    "use_torch_symm_mem_all_reduce use_hpu_communicator use_xpu_communicator use_npu_communicator "
    "use_message_queue_broadcaster group_name gloo_timeout recovered_rank rank_offset max_world_size"
)
_ROPE = "head_size rotary_dim max_position base is_neox_style rope_scaling dtype partial_rotary_factor device"
_DSA_POOL = (
    "self size page_size kv_lora_rank dtype qk_rope_head_dim layer_num device index_head_dim "
    "enable_memory_saver kv_cache_dim start_layer end_layer index_buf_size"
)

TARGETS: tuple[Target, ...] = (
    # Start and checks
    _target(
        "server_args.ServerArgs.__post_init__",
        Kind.AROUND,
        "self",
        _A,
        "validate what the user asked for before the engine resolves it",
    ),
    _target(
        "models.registry._ModelRegistry.resolve_model_cls",
        Kind.AROUND,
        "self architectures",
        _A,
        "a model whose import failed must not be replaced by another class",
    ),
    _target(
        "managers.scheduler.Scheduler.init_disaggregation",
        Kind.BEFORE,
        "self",
        _A,
        "the pools exist: check them and the group before the handshake",
    ),
    _target(
        "managers.scheduler.Scheduler.__init__",
        Kind.AFTER,
        None,
        _A,
        "this rank is up: start its status and its checks",
    ),
    _target(
        "managers.scheduler.Scheduler.run_event_loop",
        Kind.AROUND,
        "self",
        _S,
        "name the lost rank that ended this one's loop; stop watching the ranks at an orderly end",
    ),
    _target(
        "entrypoints.http_server.launch_server",
        Kind.BEFORE,
        None,
        _A,
        "serve GET /plait/status",
    ),
    _target(
        "managers.scheduler.Scheduler.on_idle",
        Kind.BEFORE,
        "self",
        _S,
        "page accounting check when idle",
    ),
    _target(
        "managers.scheduler.Scheduler.process_input_requests",
        Kind.BEFORE,
        "self recv_reqs",
        _S,
        "page accounting check on demand",
    ),
    _target(
        "managers.tokenizer_control_mixin.TokenizerControlMixin.open_session",
        Kind.AROUND,
        "self obj request",
        _S,
        "sessions need no flag, so they are refused where they begin",
    ),
    # The split
    _target(
        "layers.cp.base.init_cp_strategy",
        Kind.AFTER,
        "server_args",
        _S,
        "page ownership decides which rank computes which token",
    ),
    _target(
        "layers.attention.dsa.utils.can_dsa_prefill_cp_round_robin_split",
        Kind.REPLACE,
        "forward_batch",
        _S,
        "a rank without rows is normal: no gate on tokens >= ranks",
    ),
    # The pools
    _target(
        "mem_cache.kv_cache_configurator.DSATokenToKVPool",
        Kind.REPLACE,
        _DSA_POOL,
        _S,
        "each rank stores its own pages and reads a dense view",
    ),
    _target(
        "mem_cache.kv_cache_configurator.PagedTokenToKVPoolAllocator",
        Kind.REPLACE,
        "self size page_size dtype device kvcache need_sort",
        _S,
        "owners are chosen when pages are",
    ),
    _target(
        "mem_cache.allocation.alloc_for_extend",
        Kind.AROUND,
        "batch",
        _S,
        "page ids of a batch's requests are kept on the host, and the allocator sees whose pages go on",
    ),
    _target(
        "mem_cache.radix_cache.RadixCache.insert",
        Kind.AFTER,
        "self params",
        _S,
        "page ids on the host beside a new node",
    ),
    _target(
        "mem_cache.radix_cache.RadixCache._split_node",
        Kind.AROUND,
        "self key child split_len",
        _S,
        "page ids on the host beside both parts of a node",
    ),
    _target(
        "mem_cache.radix_cache.RadixCache.cache_unfinished_req",
        Kind.AROUND,
        "self req chunked",
        _S,
        "a request's row on the host follows the tree's choice of equal pages",
    ),
    _target(
        "mem_cache.radix_cache.RadixCache.cache_finished_req",
        Kind.AROUND,
        "self req is_insert kv_len_to_handle",
        _S,
        "pages of a request that ends are freed from the host's ids",
    ),
    _target(
        "model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size",
        Kind.AROUND,
        "self kvc num_layers",
        _S,
        "a token costs a rank 1/N of its row, and the scratch is set aside",
    ),
    _target(
        "model_executor.pool_configurator.DefaultPoolConfigurator.calculate_pool_sizes",
        Kind.AROUND,
        "self available_bytes page_size",
        _S,
        "set the scratch aside; whole stripes only",
    ),
    _target(
        "model_executor.pool_configurator.DefaultPoolConfigurator.calculate_pool_sizes_from_max_tokens",
        Kind.AROUND,
        "self max_total_num_tokens page_size",
        _S,
        "whole stripes only",
    ),
    # The forward
    _target(
        "layers.attention.dsa_backend.DeepseekSparseAttnBackend.init_forward_metadata",
        Kind.AROUND,
        "self forward_batch",
        _S,
        "writes go to own physical slots, reads to dense slots",
    ),
    _target(
        "layers.attention.dsa.dsa_indexer.Indexer._get_topk_ragged",
        Kind.BEFORE,
        "self enable_dual_stream forward_batch layer_id q_fp8 weights metadata topk_result",
        _S,
        "a rank without rows returns before it reads: the exchange is where every rank passes",
    ),
    _target(
        "layers.attention.dsa_backend.DeepseekSparseAttnBackend.forward_extend",
        Kind.AROUND,
        "self q k v layer forward_batch save_kv_cache q_rope k_rope topk_indices cos_sin_cache is_neox "
        "llama_4_scaling",
        _S,
        "sparse attention on an FP8 cache reads slots, not the chunk as it was handed to the store",
    ),
    _target(
        "layers.attention.dsa.dsa_indexer.Indexer._should_chunk_mqa_logits",
        Kind.REPLACE,
        "self num_q num_k device_index",
        _S,
        "rows of index logits at once follow from the batch, not from a rank's free memory",
    ),
    # The tail
    _target(
        "model_executor.runner.eager_runner.EagerRunner._execute_extend_cp_v2",
        Kind.AROUND,
        "self forward_batch kwargs",
        _S,
        "the batch tells whether anything but last rows will be read",
    ),
    _target(
        "layers.cp.utils.cp_gather_after_forward",
        Kind.AROUND,
        "x forward_batch stream",
        _S,
        "only the last row of each request is collected",
    ),
    _target(
        "layers.logits_processor.LogitsProcessor.forward",
        Kind.AROUND,
        "self input_ids hidden_states lm_head logits_metadata aux_hidden_states hidden_states_before_norm",
        _S,
        "collected last rows are a batch of one token per request",
    ),
    # Admission
    _target(
        "managers.schedule_policy.PrefillAdder.add_one_req",
        Kind.AROUND,
        "self req has_chunked_req truncation_align_size",
        _S,
        "the dense scratch is a budget",
    ),
    _target(
        "managers.schedule_policy.PrefillAdder.add_one_req_ignore_eos",
        Kind.AROUND,
        "self req",
        _S,
        "the dense scratch is a budget",
    ),
    _target(
        "disaggregation.prefill.PrefillBootstrapQueue._check_if_req_exceed_kv_capacity",
        Kind.AROUND,
        "self req",
        _A,
        "a prompt that can never be admitted is refused, not kept waiting",
    ),
    _target(
        "disaggregation.decode.DecodePreallocQueue._check_if_req_exceed_kv_capacity",
        Kind.AROUND,
        "self req",
        _A,
        "a request that can never be taken is refused, not kept waiting",
    ),
    # Without a GPU
    _target(
        "managers.scheduler.Scheduler.maybe_send_health_check_signal",
        Kind.BEFORE,
        "self",
        _C,
        "a scheduler that waits leaves its core to the forward",
    ),
    _target(
        "entrypoints.engine._set_envs_and_config",
        Kind.AFTER,
        "server_args",
        _C,
        "engine processes by fork: imported once",
    ),
    _target(
        "distributed.parallel_state.GroupCoordinator.__init__",
        Kind.AROUND,
        _INIT_GROUP,
        _C,
        "no pynccl: libnccl may be present, a device is not",
    ),
    _target(
        "distributed.parallel_state.GroupCoordinator.all_gather_into_tensor",
        Kind.REPLACE,
        "self output input",
        _C,
        "the custom op is registered for CUDA only",
    ),
    _target(
        "distributed.parallel_state.GroupCoordinator.reduce_scatter_tensor",
        Kind.REPLACE,
        "self output input",
        _C,
        "the custom op is registered for CUDA only",
    ),
    _target(
        "layers.rotary_embedding.factory.get_rope_cpu",
        Kind.AROUND,
        _ROPE,
        _C,
        "the CPU factory knows yarn only",
    ),
    _target(
        "layers.rotary_embedding.rope_variant.DeepseekScalingRotaryEmbedding.forward_native",
        Kind.AROUND,
        "self positions query key offsets",
        _C,
        "1-D positions and 2-D keys broadcast wrongly",
    ),
    _target(
        "layers.attention.dsa.dsa_indexer.Indexer.forward_native",
        Kind.REPLACE,
        "self args kwargs",
        _C,
        "indexer logits and top-k in torch",
    ),
    _target(
        "layers.attention.dsa.dsa_indexer.Indexer._maybe_rotate",
        Kind.REPLACE,
        "self x",
        _C,
        "the Hadamard rotation keeps the logits: leave it out",
    ),
    _target(
        "layers.attention.attention_registry.ATTENTION_BACKENDS:dsa",
        Kind.ITEM,
        None,
        _C,
        "sparse MLA in torch on the stock backend's metadata",
    ),
    _target(
        "mem_cache.memory_pool.set_mla_kv_buffer_triton",
        Kind.REPLACE,
        "kv_buffer loc cache_k_nope cache_k_rope",
        _C,
        "torch store instead of a CUDA kernel",
    ),
    _target(
        "mem_cache.memory_pool.get_mla_kv_buffer_triton",
        Kind.REPLACE,
        "kv_buffer loc cache_k_nope cache_k_rope",
        _C,
        "torch read instead of a CUDA kernel",
    ),
    _target(
        "mem_cache.memory_pool.DSATokenToKVPool.set_index_k_scale_buffer",
        Kind.REPLACE,
        "self layer_id loc index_k index_k_scale",
        _C,
        "torch store instead of a CUDA kernel",
    ),
    _target(
        "configs.update_config.adjust_config_with_unaligned_cpu_tp",
        Kind.REPLACE,
        "model_config load_config tp_size",
        _C,
        "padding MoE widths for AMX leaves rows uninitialised: silently wrong at TP 4",
    ),
    # Prefill -> decode
    _target(
        "disaggregation.common.conn.CommonKVManager.__init__",
        Kind.BEFORE,
        "self args disaggregation_mode server_args is_mla_backend",
        _A,
        "the wire contract travels in the bootstrap handshake",
    ),
    _target(
        "disaggregation.common.conn.CommonKVManager.try_ensure_parallel_info",
        Kind.AROUND,
        "self bootstrap_addr",
        _A,
        "a prefill of another contract fails its requests, not this engine",
    ),
    _target(
        "disaggregation.common.conn.CommonKVSender._prepare_send_indices",
        Kind.AROUND,
        "self kv_indices state_indices",
        _S,
        "each rank sends the pages it owns, with their positions",
    ),
    _target(
        "disaggregation.mooncake.conn.MooncakeKVManager._get_dsa_cache_transfer_skip_flags",
        Kind.REPLACE,
        "self info",
        _S,
        "index pages travel from their owners too",
    ),
    _target(
        "disaggregation.mooncake.conn.MooncakeKVManager.maybe_send_extra",
        Kind.AROUND,
        "self req prefill_state_indices executor target_rank_registration_info",
        _S,
        "index pages travel from their owners, never truncated",
    ),
    _target(
        "disaggregation.mooncake.conn.MooncakeKVManager.add_transfer_request",
        Kind.AROUND,
        "self bootstrap_room kv_indices index_slice is_last_chunk aux_index state_indices num_kv_tokens "
        "trace_ctx",
        _S,
        "a room whose positions do not fit its destination fails before a byte is sent",
    ),
    _target(
        "disaggregation.mooncake.conn.MooncakeKVManager._transfer_data",
        Kind.AROUND,
        "self mooncake_session_id transfer_blocks",
        _A,
        "bounded batches, counted per pair",
    ),
    _target(
        "disaggregation.mooncake.conn.MooncakeKVManager.transfer_worker",
        Kind.AROUND,
        "self queue executor staging_buffer worker_index",
        _A,
        "a transfer thread that dies ends the engine: a hang is worse than an error",
    ),
    _target(
        "disaggregation.prefill.poll_and_all_reduce_attn_cp_tp_group",
        Kind.AROUND,
        "pollers attn_cp_cpu_group attn_tp_cpu_group",
        _A,
        "a failed room is not released while any rank still sends",
    ),
    _target(
        "managers.scheduler.Scheduler.process_pending_chunked_abort",
        Kind.AROUND,
        "self",
        _S,
        "a prompt aborted between chunks keeps its pages until nobody sends them",
    ),
    _target(
        "disaggregation.common.conn.CommonKVManager._send_multipart_locked",
        Kind.AROUND,
        "self endpoint parts is_ipv6",
        _A,
        "decode hears of the end of a room when it has ended",
    ),
    _target(
        "disaggregation.mooncake.conn.MooncakeKVManager.start_decode_thread",
        Kind.BEFORE,
        "self",
        _A,
        "decode counts the ranks that are done with a room",
    ),
    _target(
        "disaggregation.common.conn.CommonKVReceiver._send_abort_notification",
        Kind.BEFORE,
        "self",
        _A,
        "decode counts one answer from each rank",
    ),
    _target(
        "disaggregation.mooncake.conn.MooncakeKVReceiver.poll",
        Kind.AROUND,
        "self",
        _A,
        "a failed room's pages are not reused while prefill may still write them",
    ),
    _target(
        "disaggregation.common.conn.CommonKVManager._handle_node_failure",
        Kind.AFTER,
        "self failed_bootstrap_addr",
        _A,
        "time to look whether a silent prefill's ranks still live",
    ),
    # Records (PLAIT_DEBUG_CHECKS)
    _target(
        "managers.scheduler.Scheduler.get_new_batch_prefill",
        Kind.AROUND,
        "self running_batch",
        _D,
        "tests hold batches back, so that they are formed as a whole",
    ),
    _target(
        "disaggregation.decode.SchedulerDisaggregationDecodeMixin.get_new_prebuilt_batch",
        Kind.AROUND,
        "self running_batch",
        _D,
        "tests hold requests back, so that they are decoded together",
    ),
    _target(
        "disaggregation.prefill.SchedulerDisaggregationPrefillMixin.send_kv_chunk",
        Kind.AFTER,
        "self req last_chunk end_idx",
        _D,
        "digests of the pages that were sent",
    ),
    _target(
        "disaggregation.decode.DecodeTransferQueue._commit_transfer_to_req",
        Kind.AFTER,
        "self decode_req",
        _D,
        "digests of the pages that arrived",
    ),
)
