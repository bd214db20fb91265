"""An engine's own contract is the one that the operator computed of it before it ran."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from plait.contract.layouts import Layout, Split
from plait.contract.settings import Settings
from plait.engine import identity, state
from plait.model.shape import TinyShape, config_json
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.capacity import contract_of, shape_of


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The facts that an engine looks at, without an engine: its arguments, group, settings and pool."""
    (tmp_path / "config.json").write_text(json.dumps(config_json(TinyShape())))
    arguments = SimpleNamespace(
        model_path=str(tmp_path), revision=None, disaggregation_transfer_backend="mooncake"
    )
    context = ModuleType("sglang.srt.runtime_context")
    context.get_server_args = lambda: arguments  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    monkeypatch.setattr(state, "group", lambda: SimpleNamespace(ranks=2))
    identity.wire_contract.cache_clear()
    identity.group_contract.cache_clear()
    yield arguments
    identity.wire_contract.cache_clear()
    identity.group_contract.cache_clear()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("device", "stored", "dtype"),
    [
        ("cuda", torch.float8_e4m3fn, "fp8_e4m3"),
        ("cuda", torch.bfloat16, "bfloat16"),
        ("cpu", torch.bfloat16, "fp8_e4m3"),
    ],
)
@pytest.mark.parametrize("backend", ["mooncake", "mooncake_tcp"])
@pytest.mark.parametrize("layout", [Layout.SHARED, Layout.REPLICATED])
def test_both_compute_the_same(
    device: str,
    stored: torch.dtype,
    dtype: str,
    backend: str,
    layout: Layout,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "kv_dtype", stored)
    monkeypatch.setattr(state, "settings", Settings(layout=layout, split=Split.PAGE_ZIGZAG))
    # The engine turns mooncake_tcp into this before anything of Plait looks.
    monkeypatch.setenv("MC_FORCE_TCP", "1" if backend == "mooncake_tcp" else "0")
    spec = SharedKVDeploymentSpec.model_validate(
        {
            "model": {
                "name": "tiny",
                "source": {"hostPath": {"path": "/m"}},
                "shape": config_json(TinyShape()),
            },
            "engine": {"image": "sglang:0.5.17", "device": device},
            "cache": {"layout": layout.value, "split": "page-zigzag", "dtype": dtype},
            "prefill": {"contextParallel": 2},
            "transfer": {"backend": backend},
        }
    )
    shape = shape_of(spec, None)
    assert shape is not None
    told = contract_of(spec, shape)
    assert told == identity.group_contract()
    assert (told.wire.hash, told.hash) == (identity.wire_hash(), identity.group_contract().hash)
