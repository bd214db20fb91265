"""Whose figure counts, and what is put in the field before it is another's."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.children.given import deployment

from plait_operator import names
from plait_operator.observed import Observed
from plait_operator.plan.scaling import role_ref, seed, wanted

AUTO: dict[str, Any] = {"prefill": {"external": True, "maxReplicas": 9}}
ROWS = [
    # (name, autoscaling, the SharedKVRole's spec, prefill wanted)
    ("spec", None, {"replicas": 7}, 2),
    ("spec, no role yet", None, None, 2),
    ("autoscaler", AUTO, {"replicas": 7}, 7),
    ("autoscaler at zero", AUTO, {"replicas": 0}, 0),
    ("autoscaler, no role yet", AUTO, None, 2),
    ("autoscaler, empty role", AUTO, {}, 2),
]


@pytest.mark.parametrize(("auto", "spec", "count"), [pytest.param(*row[1:], id=row[0]) for row in ROWS])
def test_wanted(auto: dict[str, Any] | None, spec: dict[str, Any] | None, count: int) -> None:
    told = deployment(
        prefill={"replicas": 2}, decode={"replicas": 4}, **({"autoscaling": auto} if auto else {})
    )
    live = {role_ref(told): {"metadata": {}, "spec": spec}} if spec is not None else {}
    assert wanted(told, Observed(children=live), "prefill") == count
    assert wanted(told, Observed(children=live), "decode") == 4


def test_seed() -> None:
    manifest = {
        "apiVersion": "plait.dev/v1alpha1",
        "kind": "SharedKVRole",
        "metadata": {"name": "glm-prefill", "namespace": "n", "labels": {}, "ownerReferences": []},
        "spec": {},
    }
    assert seed(deployment(), manifest, Observed()) is None
    scaled = deployment(prefill={"replicas": 3}, autoscaling=AUTO)
    live = {role_ref(scaled): {"metadata": {}, "spec": {"replicas": 8}}}
    fresh, running = seed(scaled, manifest, Observed()), seed(scaled, manifest, Observed(children=live))
    assert fresh is not None
    assert running is not None
    assert (fresh.manifest["spec"], fresh.manager) == ({"replicas": 3}, names.SEED)
    assert running.manifest["spec"] == {"replicas": 8}
