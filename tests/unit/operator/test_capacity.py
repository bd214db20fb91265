"""Contract, context length and capacity of a deployment, before an engine runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait.contract.capacity import GatherBy, pool_unit
from plait.contract.families import FAMILIES
from plait.contract.gpu_memory import GPU_MEMORY
from plait.contract.kv import GroupContract, WireContract, transfer_backend
from plait.contract.layouts import Layout, Split
from plait.contract.shape import ModelShape
from plait.contract.versions import plait_version
from plait.contract.violation import ContractError
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.capacity import (
    GPU_LABEL,
    active_tokens,
    context_length_of,
    contract_of,
    decode_weights,
    estimate,
    gather_by,
    kv_dtype_of,
    reported,
    shape_of,
)

TINY: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "vocab_size": 512,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": 64,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "torch_dtype": "bfloat16",
}


def spec(**sections: Any) -> SharedKVDeploymentSpec:
    model = {"name": "m", "source": {"hostPath": {"path": "/m"}}, **sections.get("model", {})}
    engine = {"image": "sglang:0.5.17", **sections.get("engine", {})}
    return SharedKVDeploymentSpec.model_validate({**sections, "model": model, "engine": engine})


FP8 = spec(model={"family": "glm-5-fp8"})


def shape(of: SharedKVDeploymentSpec) -> ModelShape:
    found = shape_of(of, TINY)
    assert found is not None
    return found


def test_a_shape_comes_from_family_spec_or_what_was_read() -> None:
    assert shape_of(spec(model={"family": "glm-5"}), None) is FAMILIES["glm-5"]
    assert shape_of(spec(model={"shape": TINY}), None) == ModelShape.from_config(TINY)
    assert shape_of(spec(), TINY) == ModelShape.from_config(TINY)
    assert shape_of(spec(), None) is None


@pytest.mark.parametrize(
    ("model", "inspected", "fields"),
    [
        ({"family": "glm-4"}, None, ["spec.model.family"]),
        (
            {"shape": {**TINY, "hidden_size": "256", "vocab_size": 0}},
            None,
            ["spec.model.shape.hidden_size", "spec.model.shape.vocab_size"],
        ),
        ({"shape": {}}, None, ["spec.model.shape.architectures"]),
        ({}, {**TINY, "hidden_size": None}, ["config.json:hidden_size"]),
    ],
)
def test_a_shape_that_is_none_is_told_by_its_fields(
    model: dict[str, Any], inspected: dict[str, Any] | None, fields: list[str]
) -> None:
    with pytest.raises(ContractError) as caught:
        shape_of(spec(model=model), inspected)
    assert [v.field for v in caught.value.violations][: len(fields)] == fields


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("backend", ["mooncake", "mooncake_tcp"])
@pytest.mark.parametrize("split", list(Split))
@pytest.mark.parametrize("layout", ["shared", "replicated"])
@pytest.mark.parametrize("dtype", ["fp8_e4m3", "bfloat16"])
def test_the_contract_is_the_one_that_an_engine_makes_of_itself(
    tmp_path: Path, device: str, backend: str, split: str, layout: str, dtype: str
) -> None:
    """As `plait.engine.identity` does it, from the model's folder, flags and environment."""
    deployment = spec(
        engine={"device": device},
        cache={"layout": layout, "split": split, "dtype": dtype},
        transfer={"backend": backend},
        prefill={"contextParallel": 4},
    )
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    environ = {"MC_FORCE_TCP": "1"} if backend == "mooncake_tcp" else {}
    wire = WireContract.of(
        ModelShape.from_path(tmp_path),
        kv_dtype="bfloat16" if device == "cpu" else dtype,
        transfer_backend=transfer_backend("mooncake", environ),
    )
    engine = GroupContract(
        wire=wire,
        ranks=4,
        split=Split(split),
        layout=Layout(layout),
        engine_version="0.5.17",
        plait_version=plait_version(),
    )
    told = contract_of(deployment, shape(deployment))
    assert told == engine
    assert (told.wire.hash, told.hash) == (wire.hash, engine.hash)


@pytest.mark.parametrize(
    ("cache", "field"),
    [
        ({"layout": "striped"}, "spec.cache.layout"),
        ({"split": "round-robin"}, "spec.cache.split"),
        ({"dtype": "int8"}, "spec.cache.dtype"),
    ],
)
def test_a_choice_that_is_none_names_its_field(cache: dict[str, Any], field: str) -> None:
    with pytest.raises(ContractError) as caught:
        contract_of(spec(cache=cache), ModelShape.from_config(TINY))
    assert [v.field for v in caught.value.violations] == [field]


def test_what_changes_nothing_that_is_sent_leaves_the_wire_hash() -> None:
    base = contract_of(FP8, shape(FP8))
    for section in ({"prefill": {"contextParallel": 4}}, {"cache": {"layout": "replicated"}}):
        other = spec(model={"family": "glm-5-fp8"}, **section)
        changed = contract_of(other, shape(other))
        assert changed.wire == base.wire
        assert changed.hash != base.hash


def test_lengths() -> None:
    assert context_length_of(FP8, shape(FP8)) == 202752
    short = spec(model={"family": "glm-5-fp8", "contextLength": 4096})
    assert context_length_of(short, shape(short)) == 4096
    assert context_length_of(spec(), ModelShape.from_config({**TINY, "max_position_embeddings": 0})) == 0


def test_glm_5_on_eight_h200_holds_what_was_planned_for() -> None:
    """About 0.45 M tokens replicated and 3.4 M shared were planned for; the estimate is on the safe side."""
    told = estimate(FP8, shape(FP8))
    assert told is not None
    assert 0.35e6 < told.tokens_replicated < 0.46e6
    assert told.tokens_shared == pytest.approx(8 * told.tokens_replicated, rel=0.01)
    assert told.tokens_shared % pool_unit(8) == 0
    assert (told.max_context, told.source) == (202752, "estimated")
    assert told.max_concurrent == told.tokens_shared // 202752
    assert 20e9 < told.bytes_per_rank < 30e9


def test_the_replicated_layout_has_its_own_figure() -> None:
    other = spec(model={"family": "glm-5-fp8"}, cache={"layout": "replicated"})
    told, shared = estimate(other, shape(other)), estimate(FP8, shape(FP8))
    assert told is not None
    assert shared is not None
    # Its engine sets no dense scratch aside.
    assert shared.tokens_replicated < told.tokens_replicated < 1.02 * shared.tokens_replicated
    assert told.max_concurrent == told.tokens_replicated // 202752
    assert active_tokens(told, layout="replicated") == told.tokens_replicated
    assert active_tokens(told, layout="shared") == told.tokens_shared


def test_tokens_that_are_written_count() -> None:
    written = spec(model={"family": "glm-5-fp8"}, prefill={"maxTotalTokens": 1024 * 1024})
    told = estimate(written, shape(written))
    assert told is not None
    assert told.tokens_shared == 1024 * 1024


def test_on_a_cpu_only_written_tokens_say_anything() -> None:
    cpu = {"engine": {"device": "cpu"}, "model": {"shape": TINY}}
    assert estimate(spec(**cpu), ModelShape.from_config(TINY)) is None
    told = estimate(
        spec(**cpu, prefill={"contextParallel": 2, "maxTotalTokens": 8192}), ModelShape.from_config(TINY)
    )
    assert told is not None
    # bfloat16 rows of 1,152 + 132 bytes in 3 layers: 64 stripes, the reserved one, two slots of scratch with
    # a page for padding; and what mapped memory loses to whole granules.
    rows, pages, slot = 1152 + 132, 8192 // 64 // 2 + 1, 8192 + 8192 + 64
    assert told.bytes_per_rank == rows * (pages * 64 * 3 + 2 * slot) + 2 * (2 << 20) + 2 * 3 * 256
    assert (told.tokens_shared, told.max_context, told.max_concurrent) == (8192, 8192, 1)


@pytest.mark.parametrize(
    "sections",
    [
        {"prefill": {"podTemplate": {"spec": {"nodeSelector": {GPU_LABEL: "NVIDIA-A100-SXM4-80GB"}}}}},
        {"prefill": {"podTemplate": {"spec": {"nodeSelector": {"pool": "gpu"}}}}},
        {"model": {"shape": TINY}},
    ],
    ids=["another GPU", "some GPU", "weights of unknown size"],
)
def test_what_cannot_be_known_is_not_guessed(sections: dict[str, Any]) -> None:
    told = spec(**{"model": {"family": "glm-5-fp8"}, **sections})
    assert estimate(told, shape(told)) is None


def test_a_written_memory_fraction_counts() -> None:
    for args in ({"mem_fraction_static": 0.8}, {"--mem-fraction-static": 0.8}, {"mem-fraction-static": 0.8}):
        less = spec(model={"family": "glm-5-fp8"}, prefill={"args": args})
        told, usual = estimate(less, shape(less)), estimate(FP8, shape(FP8))
        assert told is not None
        assert usual is not None
        assert told.tokens_shared < usual.tokens_shared


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"model": {"family": "glm-5"}}, "spec.prefill.contextParallel"),
        ({"model": {"contextLength": 100_000_000}}, "spec.model.contextLength"),
        ({"cache": {"scratchTokens": 64}}, "spec.cache.scratchTokens"),
        ({"cache": {"scratchTokens": 200_000}}, "spec.cache.scratchTokens"),
    ],
    ids=["weights", "context", "small scratch", "scratch of broken pages"],
)
def test_what_does_not_fit_names_the_field(sections: dict[str, Any], field: str) -> None:
    model = {"family": "glm-5-fp8", **sections.pop("model", {})}
    told = spec(model=model, **sections)
    with pytest.raises(ContractError) as caught:
        estimate(told, shape(told))
    assert [v.field for v in caught.value.violations] == [field]


def test_no_length_at_all_is_told() -> None:
    told = spec(prefill={"maxTotalTokens": 8192})
    with pytest.raises(ContractError, match=r"spec\.model\.contextLength"):
        estimate(told, ModelShape.from_config({**TINY, "max_position_embeddings": 0}))


@pytest.mark.parametrize("layout", ["shared", "replicated"])
def test_a_report_of_the_estimated_tokens_is_the_estimate(layout: str) -> None:
    told = spec(model={"family": "glm-5-fp8"}, cache={"layout": layout})
    planned = estimate(told, shape(told))
    assert planned is not None
    said = reported(told, shape(told), tokens=active_tokens(planned, layout=layout))
    fields = ("tokens_shared", "tokens_replicated", "max_context", "max_concurrent")
    assert [getattr(said, f) for f in fields] == [getattr(planned, f) for f in fields]
    assert said.source == "reported"


def test_a_small_pool_cuts_the_longest_request() -> None:
    said = reported(FP8, shape(FP8), tokens=pool_unit(8) * 10)
    assert (said.max_context, said.max_concurrent) == (5120, 1)


def test_a_report_that_is_no_pool_is_refused() -> None:
    with pytest.raises(ContractError, match="whole stripes"):
        reported(FP8, shape(FP8), tokens=1000)


def test_kv_types() -> None:
    assert kv_dtype_of(spec()) == "fp8_e4m3"
    assert kv_dtype_of(spec(cache={"dtype": "bfloat16"})) == "bfloat16"
    assert kv_dtype_of(spec(engine={"device": "cpu"})) == "bfloat16"


FIX = [
    # (family, ranks, memory fraction, what would do)
    ("glm-5", 8, None, "an FP8 checkpoint of the model"),
    ("glm-5-fp8", 4, None, "8 ranks"),
    ("glm-5-fp8", 2, None, "8 ranks"),
    ("glm-5-fp8", 8, 0.5, "a smaller model"),
    ("glm-5", 4, None, "an FP8 checkpoint of the model on 8 ranks"),
]


@pytest.mark.parametrize(("family", "ranks", "fraction", "fix"), FIX)
def test_a_fix_for_heavy_weights_is_one_that_would_do(
    family: str, ranks: int, fraction: float | None, fix: str
) -> None:
    args = {} if fraction is None else {"mem_fraction_static": fraction}
    told = spec(model={"family": family}, prefill={"contextParallel": ranks, "args": args})
    with pytest.raises(ContractError) as caught:
        estimate(told, shape(told))
    (violation,) = caught.value.violations
    assert (violation.field, violation.value, violation.fix) == ("spec.prefill.contextParallel", ranks, fix)


def test_a_decode_pod_loads_the_whole_model_on_its_one_gpu() -> None:
    told = decode_weights(FP8, shape(FP8))
    assert told is not None
    # 744 G parameters, one byte for nearly all of them; the fraction leaves 10 GiB of the card.
    assert told.weights == pytest.approx(744e9, rel=0.01)
    assert told.memory == GPU_MEMORY["NVIDIA-H200"]
    assert told.memory - told.room == pytest.approx(10 << 30, rel=0.01)
    assert not told.fits


def test_decode_weights_of_a_small_model_fit() -> None:
    sizes = {"intermediate_size": 1024, "n_routed_experts": 0}
    small = spec(model={"shape": {**TINY, **sizes}})
    told = decode_weights(small, shape(small))
    assert told is not None
    assert 0 < told.weights < 1 << 30
    assert told.fits


def test_the_fraction_of_decode_is_its_own() -> None:
    half = {"args": {"mem_fraction_static": 0.5}}
    rooms = [
        decode_weights(spec(model={"family": "glm-5-fp8"}, **sections), shape(FP8))
        for sections in ({"decode": half}, {"engine": half}, {"prefill": half}, {})
    ]
    shares = [round(told.room / told.memory, 2) for told in rooms if told is not None]
    assert shares == [0.5, 0.5, 0.93, 0.93]


@pytest.mark.parametrize(
    "sections",
    [
        {"engine": {"device": "cpu"}},
        {"decode": {"podTemplate": {"spec": {"nodeSelector": {GPU_LABEL: "NVIDIA-A100-SXM4-80GB"}}}}},
        {"model": {"shape": TINY}},
    ],
    ids=["a CPU", "another GPU", "weights of unknown size"],
)
def test_decode_weights_that_cannot_be_known_are_not_guessed(sections: dict[str, Any]) -> None:
    told = spec(**{"model": {"family": "glm-5-fp8"}, **sections})
    assert decode_weights(told, shape(told)) is None


@pytest.mark.parametrize(
    ("sections", "by"),
    [
        ({}, GatherBy.PEER),
        ({"cache": {"peerAccess": "required"}}, GatherBy.PEER),
        ({"cache": {"peerAccess": "off"}}, GatherBy.COLLECTIVE),
        ({"prefill": {"contextParallel": 8, "nodesPerGroup": 2}}, GatherBy.COLLECTIVE),
        ({"engine": {"device": "cpu"}}, GatherBy.PEER),
    ],
)
def test_collectives_are_counted_where_nothing_is_mapped(sections: dict[str, Any], by: GatherBy) -> None:
    assert gather_by(spec(**sections)) is by


def test_without_peers_there_is_room_for_less() -> None:
    off = spec(model={"family": "glm-5-fp8"}, cache={"peerAccess": "off"})
    usual, told = estimate(FP8, shape(FP8)), estimate(off, shape(off))
    assert usual is not None
    assert told is not None
    # What collectives receive and send, a slot of 202,752 + 8,192 + 64 tokens and an eighth of it, is room
    # that the pool does not have: 61,464 bytes a token over eight ranks.
    slot = (202752 + 8192 + 64) * 788
    assert (usual.tokens_shared - told.tokens_shared) * 61464 / 8 == pytest.approx(slot * 1.125, rel=0.05)
    said = reported(off, shape(off), tokens=told.tokens_shared)
    assert said.bytes_per_rank == told.bytes_per_rank
