"""Every example of the chart may be: the validator has nothing against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from plait_operator.capacity import contract_of, estimate, shape_of
from plait_operator.validate import read, validate_spec

CHART = Path(__file__).parents[3] / "charts/plait"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))


def manifests(path: Path) -> list[dict[str, Any]]:
    return [m for m in yaml.safe_load_all(path.read_text()) if m]


def test_there_is_one_for_gpus_and_one_for_a_laptop():
    assert {path.stem for path in EXAMPLES} >= {"glm-5-8xh200", "laptop-cpu"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_it_is_valid(path: Path):
    for manifest in manifests(path):
        deployment, violations = read(manifest)
        assert violations == []
        assert deployment is not None
        assert validate_spec(deployment.spec, shape=shape_of(deployment.spec, None)) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_no_image_names_a_registry(path: Path):
    (manifest,) = manifests(path)
    assert "/" not in manifest["spec"]["engine"]["image"]


def test_glm_5_holds_what_its_example_promises():
    (manifest,) = manifests(CHART / "examples/glm-5-8xh200.yaml")
    deployment, _ = read(manifest)
    assert deployment is not None
    shape = shape_of(deployment.spec, None)
    assert shape is not None
    capacity = estimate(deployment.spec, shape)
    assert capacity is not None
    # A request of full length fits many times over, and shared is eight times the replicated layout.
    assert capacity.max_concurrent >= 8
    assert capacity.tokens_shared > 7 * capacity.tokens_replicated
    assert contract_of(deployment.spec, shape).ranks == 8
