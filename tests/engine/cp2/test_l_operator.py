"""What the operator says an engine will be is what the engine says it is: labels and pairing hang on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.contract.shape import ModelShape
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.capacity import contract_of

pytestmark = pytest.mark.stack


def test_hashes_are_foretold(cp2, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    source = {"hostPath": {"path": str(model)}}
    for engine, layout in ((cp2.shared, "shared"), (cp2.replicated, "replicated")):
        spec = SharedKVDeploymentSpec.model_validate(
            {
                "model": {"name": "tiny", "source": source, "shape": config},
                "engine": {"image": "none", "device": "cpu"},
                "cache": {"layout": layout},
                "prefill": {"contextParallel": 2},
                "transfer": {"backend": "mooncake_tcp"},
            }
        )
        told = contract_of(spec, ModelShape.from_path(model))
        assert engine.status()["group_hash"] == told.hash
        for one in (engine, cp2.decode):
            assert one.status()["wire_hash"] == told.wire.hash
