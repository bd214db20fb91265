"""Engine fields that may hold any value, since nothing that Plait agrees on depends on them.

Everything that is neither here nor in `constraints` must stay at the engine's default: a feature that no
test of Plait has shown is refused, whether or not it would happen to work.
"""

from __future__ import annotations

from plait.contract.layouts import Role

# Which model, and how its weights are read (not what they become).
_MODEL = (
    "model_path",
    "tokenizer_path",
    "tokenizer_mode",
    "load_format",
    "trust_remote_code",
    "context_length",
    "revision",
    "weight_version",
    "download_dir",
    "model_checksum",
    "weight_loader_disable_mmap",
    "weight_loader_prefetch_checkpoints",
    "weight_loader_prefetch_num_threads",
    "weight_loader_drop_cache_after_load",
)
# The HTTP side, and what text goes in and out.
_SERVING = (
    "host",
    "port",
    "api_key",
    "served_model_name",
    "chat_template",
    "hf_chat_template_name",
    "completion_template",
    "default_chat_template_kwargs",
    "reasoning_parser",
    "tool_call_parser",
    "sampling_defaults",
    "preferred_sampling_params",
    "enable_cache_report",
    "stream_interval",
    "stream_response_default_include_usage",
    "file_storage_path",
    "skip_server_warmup",
)
# Process, device and network placement.
_PLACE = (
    "base_gpu_id",
    "gpu_id_step",
    "numa_node",
    "nccl_port",
    "dist_timeout",
    "dist_init_addr",
    "enable_p2p_check",
    "disable_custom_all_reduce",
    "random_seed",
    "watchdog_timeout",
    "soft_watchdog_timeout",
    "sleep_on_idle",
    "gc_threshold",
    "disaggregation_bootstrap_port",
    "disaggregation_ib_device",
    "engine_info_bootstrap_port",
)
# How many tokens and requests at once (whole pages and stripes are checked in `constraints`).
_SCHEDULE = (
    "mem_fraction_static",
    "max_running_requests",
    "max_queued_requests",
    "max_prefill_tokens",
    "prefill_max_requests",
    "schedule_conservativeness",
    "disable_radix_cache",
)
# Switches that only turn a stock speed-up off, and kernel tuning at start.
_COMPUTE = (
    "disable_cuda_graph",
    "disable_prefill_cuda_graph",
    "disable_decode_cuda_graph",
    "disable_shared_experts_fusion",
    "disable_flashinfer_autotune",
    "enforce_disable_flashinfer_allreduce_fusion",
)
# What is written down about requests.
_LOGS = (
    "log_level",
    "log_level_http",
    "log_requests",
    "log_requests_level",
    "log_requests_format",
    "log_requests_target",
    "uvicorn_access_log_exclude_prefixes",
    "crash_dump_folder",
    "decode_log_interval",
    "gc_warning_threshold_secs",
    "enable_request_time_stats_logging",
    "enable_metrics",
    "enable_metrics_for_all_schedulers",
    "extra_metric_labels",
    "tokenizer_metrics_custom_labels_header",
    "tokenizer_metrics_allowed_custom_labels",
    "bucket_time_to_first_token",
    "bucket_inter_token_latency",
    "bucket_e2e_request_latency",
    "prompt_tokens_buckets",
    "generation_tokens_buckets",
)
# Decode runs the stock engine's own decode path on plain pages: its batching and graphs are untouched.
_DECODE = (
    "disable_overlap_schedule",
    "chunked_prefill_size",
    "cuda_graph_backend_decode",
    "cuda_graph_max_bs_decode",
    "cuda_graph_bs_decode",
    "disable_cuda_graph_padding",
    "num_reserved_decode_tokens",
    "disaggregation_decode_extra_slots",
    "disaggregation_decode_polling_interval",
)

_BOTH = frozenset(_MODEL + _SERVING + _PLACE + _SCHEDULE + _COMPUTE + _LOGS)
ALLOWED: dict[Role, frozenset[str]] = {
    Role.PREFILL: _BOTH,
    Role.DECODE: _BOTH | frozenset(_DECODE),
}
