"""Every example of the chart may be: the validator has nothing against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from plait_operator.capacity import contract_of, estimate, shape_of
from plait_operator.validate import read, validate_spec

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts/plait"
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
    # What comes before the first slash is a registry where it has a dot or a port.
    *before, _ = manifest["spec"]["engine"]["image"].split("/")
    assert not before or not set(before[0]) & {".", ":"}


def test_the_laptops_engine_is_an_image_of_this_repository():
    (manifest,) = manifests(CHART / "examples/laptop-cpu.yaml")
    name, _, tag = manifest["spec"]["engine"]["image"].partition(":")
    assert (ROOT / "images" / name.removeprefix("plait-") / "Dockerfile").is_file()
    assert tag == yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]


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


@pytest.mark.parametrize("page", ["README.md", "docs/install.md", "charts/plait/templates/NOTES.txt"])
def test_the_first_request_asks_for_the_example_that_was_made(page: str):
    (manifest,) = manifests(CHART / "examples/laptop-cpu.yaml")
    text = (ROOT / page).read_text()
    steps = ["namespace serving", "examples/laptop-cpu.yaml", "skv/tiny", "svc/tiny 8000:80", "/v1/chat/comp"]
    if page.endswith(".txt"):
        steps[0] = "create namespace"
    places = [text.index(step) for step in steps]
    assert places == sorted(places)
    assert f'"model": "{manifest["spec"]["model"]["name"]}"' in text
    assert manifest["metadata"]["name"] == "tiny"
