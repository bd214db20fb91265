"""Volumes of engine pods, and where the model is."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.children.given import MODEL, deployment

from plait_operator.children.volumes import SHM_LEAST, SHM_LIMIT, model_path, of


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ({"pvc": {"claimName": "c"}}, "/model"),
        ({"pvc": {"claimName": "c", "path": "a/b"}}, "/model/a/b"),
        ({"pvc": {"claimName": "c", "path": "/a/b/"}}, "/model/a/b"),
        ({"hostPath": {"path": "/srv/glm"}}, "/model"),
        ({"hub": {"repo": "zai-org/GLM-5"}}, "zai-org/GLM-5"),
    ],
)
def test_where_the_engine_finds_the_model(source: dict[str, Any], path: str) -> None:
    assert model_path(deployment(model={**MODEL, "source": source}).spec.model.source) == path


def test_a_source_is_needed() -> None:
    spec = deployment(model={**MODEL, "source": {}}).spec
    with pytest.raises(ValueError, match=r"spec\.model\.source"):
        of(spec, {}, contract_map="c")


@pytest.mark.parametrize("source", [MODEL["source"], {"hub": {"repo": "a/b"}}, {"hostPath": {"path": "/m"}}])
def test_every_mount_has_its_volume_and_every_volume_its_mount(source: dict[str, Any]) -> None:
    told = of(
        deployment(model={**MODEL, "source": source}).spec,
        {"limits": {"hugepages-2Mi": "1Gi"}},
        contract_map="c",
    )
    names = [volume["name"] for volume in told.volumes]
    assert names == [mount["name"] for mount in told.mounts]
    assert len(set(names)) == len(names)
    paths = [mount["mountPath"] for mount in told.mounts]
    assert len(set(paths)) == len(paths)


def test_the_shared_memory_asked_for_is_what_is_given() -> None:
    for device, limit in SHM_LIMIT.items():
        assert limit.endswith("Gi")
        assert SHM_LEAST[device] <= int(limit.removesuffix("Gi")) << 30
