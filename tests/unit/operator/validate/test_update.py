from typing import Any

import pytest
from tests.cluster.admission.matrix import manifest

from plait_operator.api.cel import DEPLOYMENT_RULES
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.validate import validate_update
from plait_operator.validate.update import IMMUTABLE


def deployment(**change: Any) -> SharedKVDeployment:
    return SharedKVDeployment.of(manifest({path.replace("__", "/"): told for path, told in change.items()}))


@pytest.mark.parametrize(
    ("before", "after", "fields"),
    [
        ({}, {}, []),
        ({}, {"spec__engine__device": "cpu"}, ["spec.engine.device"]),
        ({}, {"spec__cache__pageSize": 128}, ["spec.cache.pageSize"]),
        (
            {},
            {"spec__engine__device": "cpu", "spec__cache__pageSize": 32},
            ["spec.engine.device", "spec.cache.pageSize"],
        ),
        ({}, {"spec__cache__layout": "replicated", "spec__prefill__contextParallel": 4}, []),
        ({}, {"spec__model__name": "other", "spec__model__source": {"hub": {"repo": "a/b"}}}, []),
        ({}, {"metadata__labels": {"a": "b"}}, []),
    ],
)
def test_what_is_fixed(before: dict[str, Any], after: dict[str, Any], fields: list[str]) -> None:
    found = validate_update(deployment(**before), deployment(**after))
    assert [v.field for v in found] == fields
    assert all("cannot be changed from" in v.reason and "beside this one" in v.fix for v in found)


def test_the_crd_fixes_the_same_fields() -> None:
    assert {rule.at for rule in DEPLOYMENT_RULES if "oldSelf" in rule.rule} == set(IMMUTABLE)
