"""The allow-list: what each role may set, and every refusal of the issue by name."""

from dataclasses import replace
from typing import Any

import pytest

from plait.contract.layouts import Layout, Role
from plait.contract.setting_kinds import GatherPath, PeerAccess
from plait.contract.settings import Settings
from plait.contract.shape import ModelShape
from plait.contract.validate.allowed import ALLOWED
from plait.contract.validate.constraints import CONSTRAINTS
from plait.contract.validate.engine import role_of, validate_engine, validate_resolved
from plait.contract.validate.engine_args import engine_args
from plait.contract.violation import Violation

GLM = ModelShape(
    architectures=("GlmMoeDsaForCausalLM",),
    model_type="glm_moe_dsa",
    num_hidden_layers=3,
    hidden_size=256,
    num_attention_heads=8,
    vocab_size=512,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    index_n_heads=16,
    index_head_dim=128,
    index_topk=64,
)
PREFILL: dict[str, object] = {
    "model_path": "/m",
    "disaggregation_mode": "prefill",
    "tp_size": 4,
    "attn_cp_size": 4,
    "enable_prefill_cp": True,
    "cp_strategy": "interleave",
    "disable_overlap_schedule": True,
    "page_size": 64,
    "chunked_prefill_size": 128,
    "max_total_tokens": 4096,
    "disaggregation_transfer_backend": "mooncake_tcp",
}
DECODE: dict[str, object] = {"model_path": "/m", "disaggregation_mode": "decode", "page_size": 64}


def check(role: Role = Role.PREFILL, layout: Layout | None = None, **more: Any) -> list[Violation]:
    base = DECODE if role is Role.DECODE else PREFILL
    default = Layout.PLAIN if role is Role.DECODE else Layout.SHARED
    settings = Settings(layout=layout or default, scratch_tokens=more.pop("scratch_tokens", 0))
    return validate_engine(
        role=role,
        settings=settings,
        args={**base, **more.pop("args", {})},
        shape=more.pop("shape", GLM),
        engine_version=more.pop("engine_version", "0.5.17"),
        **more,
    )


def refused(role: Role = Role.PREFILL, **args: object) -> list[str]:
    return [v.field for v in check(role, args=args)]


def test_both_roles_and_both_split_layouts_pass() -> None:
    assert check() == []
    assert check(layout=Layout.REPLICATED) == []
    assert check(Role.DECODE) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cp_strategy", "zigzag"),
        ("dsa_prefill_cp_mode", "in-seq-split"),
        ("enable_dsa_prefill_context_parallel", True),
        ("enable_prefill_context_parallel", True),
        ("page_size", 1),
        ("page_size", 128),
        ("enable_prefill_cp", False),
        ("dcp_size", 2),
        ("disaggregation_transfer_backend", "nixl"),
        ("disaggregation_transfer_backend", "mori"),
        ("disaggregation_transfer_backend", "fake"),
        ("speculative_algorithm", "EAGLE"),
        ("speculative_draft_model_path", "/d"),
        ("enable_hierarchical_cache", True),
        ("hicache_ratio", 3.0),
        ("enable_lmcache", True),
        ("enable_hisparse", True),
        ("enable_dsa_cache_layer_split", True),
        ("pp_size", 2),
        ("enable_dp_attention", True),
        ("dp_size", 2),
        ("ep_size", 4),
        ("enable_mixed_chunk", True),
        ("enable_two_batch_overlap", True),
        ("enable_single_batch_overlap", True),
        ("enable_pdmux", True),
        ("cuda_graph_backend_prefill", "tc_piecewise"),
        ("cuda_graph_backend_prefill", "breakable"),
        ("cuda_graph_config", {"prefill": {"backend": "full"}}),
        ("enable_torch_compile", True),
        ("enable_lora", True),
        ("lora_paths", ["a"]),
        ("enable_streaming_session", True),
        ("enable_session_radix_cache", True),
        ("chunked_prefill_size", 100),
        ("chunked_prefill_size", -1),
        ("disable_overlap_schedule", False),
        ("disaggregation_mode", "null"),
        ("kv_cache_dtype", "fp8_e5m2"),
        ("dtype", "float16"),
        ("attention_backend", "flashinfer"),
        ("dsa_prefill_backend", "tilelang"),
        ("model_impl", "transformers"),
        ("json_model_override_args", '{"index_topk": 1}'),
        ("enable_memory_saver", True),
        ("optimistic_prefill_attempts", 1),
        ("schedule_policy", "lpm"),
        ("nnodes", 2),
        ("kv_events_config", "{}"),
        ("allow_auto_truncate", True),
        ("max_total_tokens", 4000),
    ],
)
def test_prefill_refuses_by_name(field: str, value: object) -> None:
    assert refused(**{field: value}) == [f"args.{field}"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dcp_size", 2),
        ("tp_size", 2),
        ("attn_cp_size", 2),
        ("enable_prefill_cp", True),
        ("page_size", 1),
        ("disaggregation_transfer_backend", "nixl"),
        ("disaggregation_mode", "prefill"),
        ("speculative_algorithm", "NEXTN"),
        ("disaggregation_decode_enable_radix_cache", True),
        ("disaggregation_decode_enable_offload_kvcache", True),
        ("enable_lora", True),
        ("enable_hierarchical_cache", True),
        ("enable_dp_attention", True),
    ],
)
def test_decode_refuses_by_name(field: str, value: object) -> None:
    assert refused(Role.DECODE, **{field: value}) == [f"args.{field}"]


@pytest.mark.parametrize(
    ("ranks", "bad"), [(1, True), (2, False), (3, True), (4, False), (8, False), (16, True)]
)
def test_sizes_of_a_group(ranks: int, bad: bool) -> None:
    found = refused(tp_size=ranks, attn_cp_size=ranks)
    assert found == (["args.attn_cp_size"] if bad else [])


def test_attention_tensor_parallelism_is_refused() -> None:
    assert refused(tp_size=8) == ["args.tp_size"]
    assert set(refused(tp_size=4, attn_cp_size=1)) == {"args.attn_cp_size", "args.tp_size"}


@pytest.mark.parametrize("layout", [Layout.SHARED, Layout.REPLICATED])
def test_decode_and_unified_engines_may_not_ask_for_a_split_layout(layout: Layout) -> None:
    told = check(Role.DECODE, layout=layout)
    assert [(v.field, v.value, v.fix) for v in told] == [("PLAIT_LAYOUT", layout.value, "plain")]
    told = check(Role.UNIFIED, layout=layout, args={"disaggregation_mode": "null"})
    assert [v.field for v in told] == ["PLAIT_LAYOUT", "args.disaggregation_mode"]
    assert "unified" in told[0].reason


def test_a_prefill_engine_may_not_be_plain() -> None:
    assert [v.field for v in check(layout=Layout.PLAIN)] == ["PLAIT_LAYOUT"]


def test_off_checks_nothing() -> None:
    assert check(layout=Layout.OFF, args={"page_size": 1, "nope": 1}, engine_version="9", shape=None) == []


def test_a_unified_plain_engine_is_stock() -> None:
    assert check(Role.UNIFIED, layout=Layout.PLAIN, args={"page_size": 1}) == []


@pytest.mark.parametrize("version", [None, "0.5.16", "0.5.17.post1"])
def test_unknown_engine_versions_are_refused(version: str | None) -> None:
    [violation] = check(engine_version=version)
    assert (violation.field, violation.value) == ("engine.version", version)
    assert "0.5.17" in violation.fix


def test_unknown_arguments_are_refused_with_the_nearest_name() -> None:
    [violation] = check(args={"pagesize": 64})
    assert (violation.field, violation.value) == ("args.pagesize", 64)
    assert "page_size" in violation.fix


def test_models_are_checked_when_they_are_known() -> None:
    assert [v.field for v in check(shape=replace(GLM, index_topk_freq=4))] == ["model.index_topk_freq"]
    assert check(shape=None) == []


def test_the_engines_own_environment_is_checked_when_given() -> None:
    found = check(environ={"SGLANG_DISAGG_STAGING_BUFFER": "1"})
    assert [v.field for v in found] == ["SGLANG_DISAGG_STAGING_BUFFER"]


def test_one_request_fits_the_scratch() -> None:
    assert check(scratch_tokens=2048, args={"context_length": 2048}) == []
    [violation] = check(scratch_tokens=1024, args={"context_length": 2000})
    assert (violation.field, violation.value) == ("PLAIT_SCRATCH_TOKENS", 1024)
    assert "2048" in violation.fix


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", "30000"),
        ("host", 1),
        ("disable_radix_cache", "yes"),
        ("mem_fraction_static", "0.5"),
        ("max_total_tokens", "4096"),
        ("log_requests_target", "stdout"),
        ("max_running_requests", True),
    ],
)
def test_free_fields_still_have_a_type(field: str, value: object) -> None:
    assert refused(**{field: value}) == [f"args.{field}"]


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_pool_may_be_left_to_the_engine(role: Role) -> None:
    assert refused(role, max_total_tokens=None) == []
    base = DECODE if role is Role.DECODE else PREFILL
    unsaid = {field: value for field, value in base.items() if field != "max_total_tokens"}
    layout = Layout.PLAIN if role is Role.DECODE else Layout.SHARED
    given = {"role": role, "settings": Settings(layout=layout), "shape": GLM, "engine_version": "0.5.17"}
    assert validate_engine(args=unsaid, **given) == []


def test_flashmla_sparse_does_not_prefill_an_fp8_cache() -> None:
    fp8 = {"kv_cache_dtype": "fp8_e4m3"}
    [violation] = check(args={**fp8, "dsa_prefill_backend": "flashmla_sparse"})
    assert (violation.field, violation.value) == ("args.dsa_prefill_backend", "flashmla_sparse")
    assert "dense view" in violation.reason
    assert violation.fix == "--dsa-prefill-backend flashmla_kv"
    assert refused(**fp8, dsa_prefill_backend="tilelang") == ["args.dsa_prefill_backend"]
    assert refused(**fp8, dsa_prefill_backend="flashmla_kv") == refused(**fp8) == []
    assert refused(kv_cache_dtype="bfloat16", dsa_prefill_backend="flashmla_sparse") == []
    assert refused(Role.DECODE, **fp8, dsa_prefill_backend="flashmla_sparse") == []


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_every_other_field_must_stay_at_its_default(role: Role) -> None:
    table = engine_args()
    open_ = ALLOWED[role] | set(CONSTRAINTS[role]) | {"max_total_tokens", "tp_size", "attn_cp_size"}
    closed = [field for field in table.defaults if field not in open_]
    assert len(closed) > 300
    for field in closed:
        default = table.defaults[field]
        assert refused(role, **{field: default}) == []
        changed: object = (not default) if isinstance(default, bool) else "x"
        assert refused(role, **{field: changed}) == [f"args.{field}"], field


def test_all_violations_come_at_once_with_reason_and_fix() -> None:
    found = check(
        args={"page_size": 1, "enable_lora": True, "enable_http2": True, "nope": 1},
        shape=replace(GLM, cli_factor=2),
        engine_version="0.4",
        path="prefill.args",
    )
    assert {v.field for v in found} == {
        "prefill.args.page_size",
        "prefill.args.enable_lora",
        "prefill.args.enable_http2",
        "prefill.args.nope",
        "model.cli_factor",
        "engine.version",
    }
    assert all(v.reason and v.fix for v in found)


def test_defaults_of_another_type_are_not_the_default() -> None:
    assert refused(dp_size=True) == ["args.dp_size"]


def test_role_of() -> None:
    assert role_of({}) is Role.UNIFIED
    assert role_of({"disaggregation_mode": "prefill"}) is Role.PREFILL
    assert role_of({"disaggregation_mode": "decode"}) is Role.DECODE


def test_what_the_engine_made_of_its_arguments() -> None:
    assert validate_resolved({"page_size": 64, "attention_backend": "dsa"}) == []
    found = validate_resolved({"page_size": None, "attention_backend": "triton"})
    assert [v.field for v in found] == ["args.page_size", "args.attention_backend"]


@pytest.mark.parametrize(
    ("dtype", "kernel", "bad"),
    [
        ("fp8_e4m3", "flashmla_kv", False),
        ("fp8_e4m3", "flashmla_sparse", True),
        ("fp8_e4m3", "trtllm", True),
        ("fp8_e4m3", None, True),
        ("bfloat16", "flashmla_sparse", False),
        ("bfloat16", None, False),
    ],
)
def test_an_fp8_cache_is_read_by_flashmla_kv_whoever_chose_it(
    dtype: str, kernel: str | None, bad: bool
) -> None:
    sound = {"page_size": 64, "attention_backend": "dsa"}
    found = validate_resolved({**sound, "kv_cache_dtype": dtype, "dsa_prefill_backend": kernel})
    assert [(v.field, v.value) for v in found] == ([("args.dsa_prefill_backend", kernel)] if bad else [])


@pytest.mark.parametrize("way", list(GatherPath))
@pytest.mark.parametrize("access", list(PeerAccess))
@pytest.mark.parametrize("cpu", [False, True])
def test_a_way_of_gathering_that_is_forced_must_be_one_that_there_is(
    cpu: bool, access: PeerAccess, way: GatherPath
) -> None:
    told = validate_engine(
        role=Role.PREFILL,
        settings=Settings(layout=Layout.SHARED, cpu=cpu, peer_access=access, gather_path=way),
        args=PREFILL,
        shape=GLM,
        engine_version="0.5.17",
    )
    refused = access is PeerAccess.OFF and way in (GatherPath.COPY, GatherPath.PULL, GatherPath.PEER_VIEW)
    assert [v.field for v in told] == (["PLAIT_GATHER_PATH"] if refused else [])
    assert all("PLAIT_PEER_ACCESS=auto" in v.fix for v in told)
