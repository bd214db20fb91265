"""A pod as preflight sees it: a root folder, a model, and what it is asked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.contract.contract_file import ContractFile
from plait.contract.kv import GroupContract, WireContract
from plait.contract.layouts import Layout, Split
from plait.contract.shape import ModelShape
from plait.contract.versions import plait_version
from plait.pod.asked import Asked
from plait.pod.deadline import Deadline

CONFIG: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "vocab_size": 512,
    "kv_lora_rank": 512,
    "q_lora_rank": 128,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_n_heads": 16,
    "index_head_dim": 128,
    "index_topk": 64,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
COMMON = ("--attention-backend", "dsa", "--page-size", "64", "--context-length", "2048")
PREFILL = (
    *COMMON,
    *("--disaggregation-mode", "prefill", "--tp-size", "2", "--attn-cp-size", "2"),
    *("--enable-prefill-cp", "--cp-strategy", "interleave", "--chunked-prefill-size", "128"),
    *("--disable-overlap-schedule", "--disable-cuda-graph"),
)
DECODE = (*COMMON, "--disaggregation-mode", "decode")
CPU = ("--device", "cpu", "--dtype", "float32")


def outer(**variables: str) -> dict[str, str]:
    """This process's environment without Plait's settings, and `variables`."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PLAIT_", "SGLANG_", "MC_"))} | variables


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def asked(tmp_path: Path, model: Path) -> Callable[..., Asked]:
    """Builds a sound question about a CPU prefill engine; keywords change it."""
    wire = WireContract.of(
        ModelShape.from_config(CONFIG), kv_dtype="bfloat16", transfer_backend="mooncake_tcp"
    )
    group = GroupContract(
        wire=wire,
        ranks=2,
        split=Split.PAGE_INTERLEAVE,
        layout=Layout.SHARED,
        engine_version="0.5.17",
        plait_version=plait_version(),
    )
    root = tmp_path / "root"
    root.mkdir()

    def build(**changes: Any) -> Asked:
        role = changes.pop("role", "prefill")
        flags = changes.pop("flags", (*(PREFILL if role == "prefill" else DECODE), *CPU))
        backend = changes.pop("backend", "mooncake_tcp")
        file = tmp_path / "contract.json"
        file.write_text(ContractFile.of(changes.pop("group", group), role=role).model_dump_json())
        layout = "shared" if role == "prefill" else "plain"
        told: dict[str, Any] = {
            "contract": file,
            "gpus": 0,
            "flags": ("--model-path", str(model), "--disaggregation-transfer-backend", backend, *flags),
            "environ": outer(PLAIT_LAYOUT=layout, PLAIT_CPU="1", **changes.pop("env", {})),
            "deadline": Deadline(60),
            "root": root,
        }
        return Asked(**{**told, **changes})

    build.group = group  # type: ignore[attr-defined]
    return build
