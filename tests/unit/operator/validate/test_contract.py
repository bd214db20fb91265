"""The validator of `plait check`: what it says of the mapped configuration is what a manifest is told."""

from typing import Any

import pytest
from tests.cluster.admission.matrix import BAD, GOOD, Bad, Good, manifest

from plait.contract.validate import validate_stack
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.validate import read, stack_config
from plait_operator.validate.contract import contract_violations


def spec_of(change: dict[str, Any], *, cpu: bool = False) -> SharedKVDeploymentSpec:
    return SharedKVDeploymentSpec.model_validate(manifest(change, cpu=cpu)["spec"])


@pytest.mark.parametrize("row", GOOD, ids=lambda row: row.name)
def test_the_configuration_of_a_good_manifest_passes(row: Good) -> None:
    found = validate_stack(stack_config(spec_of(row.change, cpu=row.cpu)))
    assert [v.field for v in found if v.field != "model.path"] == []


@pytest.mark.parametrize("row", BAD, ids=lambda row: row.name)
def test_what_plait_check_says_is_told_by_admission(row: Bad) -> None:
    deployment, told = read(manifest(row.change, cpu=row.cpu))
    if deployment is None:
        return
    values = {str(v.value) for v in told}
    for violation in validate_stack(stack_config(deployment.spec)):
        if violation.field != "model.path":
            assert str(violation.value) in values


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"spec/prefill/contextParallel": 3}, "spec.prefill.contextParallel", "2 or 4 or 8"),
        ({"spec/prefill/chunk": 100}, "spec.prefill.chunk", "multiple of 64"),
        ({"spec/prefill/maxTotalTokens": 1000}, "spec.prefill.maxTotalTokens", "512 or 1024"),
        ({"spec/decode/dataParallel": 2}, "spec.decode.dataParallel", "more spec.decode.replicas"),
        ({"spec/engine/version": "1.0"}, "spec.engine.version", "0.5.17, with an image of it"),
        ({"spec/cache/layout": "foo"}, "spec.cache.layout", "shared, or replicated"),
        ({"spec/cache/layout": "sharded"}, "spec.cache.layout", "shared, or replicated"),
        ({"spec/cache/split": "x"}, "spec.cache.split", "page-interleave"),
        ({"spec/transfer/backend": "nixl"}, "spec.transfer.backend", "mooncake_tcp"),
        ({"spec/engine/args": {"dcp_size": 2}}, "spec.engine.args.dcp_size", "default"),
        ({"spec/decode/args": {"dcp-size": 2}}, "spec.decode.args.dcp-size", "default"),
    ],
)
def test_places_and_fixes_are_those_of_the_manifest(change: dict[str, Any], field: str, words: str) -> None:
    [told] = contract_violations(spec_of(change), shape=None, experimental=frozenset())
    assert told.field == field
    assert words in told.fix


def test_words_speak_of_the_manifest_too() -> None:
    change = {"spec/prefill/args": {"chat_template": "a"}, "spec/decode/args": {"chat_template": "b"}}
    [told] = contract_violations(spec_of(change), shape=None, experimental=frozenset())
    assert told.reason == "prefill and decode must agree: spec.prefill.args.chat_template = 'a'"
    change = {"spec/model/contextLength": 8192, "spec/cache/scratchTokens": 64}
    [told] = contract_violations(spec_of(change), shape=None, experimental=frozenset())
    assert "(spec.model.contextLength = 8192)" in told.reason
    assert told.value == 64


def test_decode_is_not_told_the_reasons_of_prefill_groups() -> None:
    [told] = contract_violations(
        spec_of({"spec/decode/dataParallel": 2}), shape=None, experimental=frozenset()
    )
    assert "one GPU" in told.reason
    assert "group" not in told.reason


def test_a_cpu_stores_what_it_stores() -> None:
    assert stack_config(spec_of({}, cpu=True)).cache.dtype == "auto"
    assert stack_config(spec_of({})).cache.dtype == "fp8_e4m3"


def test_nobody_looks_for_the_model_on_the_machine_that_validates(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text("not JSON")
    change = {"spec/model/source": {"hostPath": {"path": str(tmp_path)}}}
    assert read(manifest(change))[1] == []
