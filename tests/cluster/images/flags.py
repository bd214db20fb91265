"""Command lines of the stub engine's pods, as the operator writes them for a CPU deployment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plait.contract.contract_file import ContractFile
from plait.contract.kv import GroupContract, WireContract
from plait.contract.layouts import Layout, Role, Split
from plait.contract.shape import ModelShape
from plait.contract.versions import ENGINE_VERSIONS, plait_version
from plait.engine.launch import decode_launch, prefill_launch

FLOAT32 = ("--dtype", "float32")


def launch(
    role: str, *, model: Path, host: str, port: int, bootstrap: int
) -> tuple[Sequence[str], dict[str, str]]:
    """Flags and variables of an engine of `role`: what `plait up` gives it."""
    common = {
        "model": model,
        "host": host,
        "port": port,
        "context_length": 2048,
        "max_total_tokens": 8192,
        "state_dir": Path("/tmp"),
        "extra": FLOAT32,
    }
    if role == "decode":
        told = decode_launch(**common, index=0)  # type: ignore[arg-type]
    else:
        told = prefill_launch(
            **common,  # type: ignore[arg-type]
            bootstrap_port=bootstrap,
            cp=2,
            layout="shared",
            split="page-interleave",
            chunk=128,
        )
    # Without the interpreter and its module.
    return told.argv[3:], told.env


def contract_file(model: Path, role: str) -> str:
    """The ConfigMap's file for such an engine."""
    wire = WireContract.of(ModelShape.from_path(model), kv_dtype="bfloat16", transfer_backend="mooncake_tcp")
    group = GroupContract(
        wire=wire,
        ranks=2,
        split=Split.PAGE_INTERLEAVE,
        layout=Layout.SHARED,
        engine_version=ENGINE_VERSIONS[-1],
        plait_version=plait_version(),
    )
    chosen = "decode" if role == Role.DECODE else "prefill"
    return ContractFile.of(group, role=chosen).model_dump_json()
