from typing import Any

import pytest

from plait_operator.api.spec import SharedKVDeploymentSpec, SharedKVRoleSpec
from plait_operator.validate.form import read_form

SOUND: dict[str, Any] = {
    "model": {"name": "m", "source": {"pvc": {"claimName": "c"}}},
    "engine": {"image": "i"},
}


def told(**changes: Any) -> list[tuple[str, str, str]]:
    form = read_form({**SOUND, **changes}, SharedKVDeploymentSpec)
    assert isinstance(form.spec, SharedKVDeploymentSpec)
    return [(v.field, v.reason, v.fix) for v in form.faults]


def test_what_is_sound_is_read() -> None:
    form = read_form(SOUND, SharedKVDeploymentSpec)
    assert form.faults == ()
    assert form.spec.model.source.pvc.claim_name == "c"


@pytest.mark.parametrize(
    ("changes", "field", "reason", "fix"),
    [
        ({"prefil": {}}, "spec.prefil", "no such field", "did you mean prefill?"),
        ({"zzz": 1}, "spec.zzz", "no such field", "one of model, engine, runtime, cache"),
        (
            {"prefill": {"context_parallel": 4}},
            "spec.prefill.context_parallel",
            "no such field",
            "contextParallel",
        ),
        ({"engine": {}}, "spec.engine.image", "is missing", "Image of stock SGLang"),
        ({"engine": None}, "spec.engine", "must be a mapping", "values, with image"),
        ({"model": 3}, "spec.model", "must be a mapping", "values, with name and source"),
        ({"engine": {"image": ""}}, "spec.engine.image", "is empty", "write"),
        ({"engine": {"image": 5}}, "spec.engine.image", "must be a text", "quotes"),
        (
            {"engine": {"image": "i", "device": "gpu"}},
            "spec.engine.device",
            "no such choice",
            "one of cuda or cpu",
        ),
        ({"engine": {"image": "i", "args": []}}, "spec.engine.args", "must be a mapping", "mapping"),
        (
            {"router": {"service": {"annotations": {"example.com/internal": True}}}},
            "spec.router.service.annotations.example.com/internal",
            "must be a text",
            "quotes",
        ),
        ({"engine": {"image": "i", "env": {}}}, "spec.engine.env", "must be a list", "list"),
        ({"engine": {"image": "i", "env": ["A=1"]}}, "spec.engine.env[0]", "must be a mapping", "mapping"),
        ({"prefill": {"replicas": "2"}}, "spec.prefill.replicas", "must be a whole number", "without quotes"),
        ({"prefill": {"replicas": 2.5}}, "spec.prefill.replicas", "must be a whole number", "number"),
        ({"prefill": {"replicas": True}}, "spec.prefill.replicas", "must be a whole number", "number"),
        ({"prefill": {"replicas": -1}}, "spec.prefill.replicas", "must be at least 0", "0 or more"),
        ({"cache": {"prefetch": "true"}}, "spec.cache.prefetch", "must be true or false", "without quotes"),
        ({"cache": []}, "spec.cache", "must be a mapping", "mapping"),
        (
            {"router": {"service": {"port": 99999}}},
            "spec.router.service.port",
            "must be at most 65535",
            "65535",
        ),
        (
            {"router": {"auth": {"secretRef": {}}}},
            "spec.router.auth.secretRef.name",
            "is missing",
            "Name of the",
        ),
        (
            {"pods": {"imagePullSecrets": [{"name": "a"}, {"nam": "b"}]}},
            "spec.pods.imagePullSecrets[1].name",
            "is missing",
            "Name",
        ),
        (
            {"transfer": {"rdma": {"devices": ["a", 5]}}},
            "spec.transfer.rdma.devices[1]",
            "must be a text",
            "quotes",
        ),
        (
            {"model": {"name": "n" * 300, "source": {}}},
            "spec.model.name",
            "is longer than 253 characters",
            "253",
        ),
    ],
)
def test_a_fault_is_told_with_its_path_and_a_fix(
    changes: dict[str, Any], field: str, reason: str, fix: str
) -> None:
    found = {where: (why, how) for where, why, how in told(**changes)}
    assert field in found
    assert found[field][0] == reason
    assert fix in found[field][1]


def test_all_faults_are_told_at_once_and_none_twice() -> None:
    found = told(
        engine={"imag": "i", "device": 3},
        prefill={"replicas": "2", "chunk": 0},
        decode=7,
        nothing=1,
        router={"auth": {}},
    )
    fields = [field for field, _, _ in found]
    assert len(fields) == len(set(fields))
    assert set(fields) == {
        "spec.engine.imag",
        "spec.engine.image",
        "spec.engine.device",
        "spec.prefill.replicas",
        "spec.prefill.chunk",
        "spec.decode",
        "spec.nothing",
        "spec.router.auth.secretRef",
    }


def test_a_section_that_is_left_out_or_empty_names_what_it_needs() -> None:
    told = read_form({"model": SOUND["model"]}, SharedKVDeploymentSpec).faults
    assert [(v.field, v.reason) for v in told] == [("spec.engine", "is missing")]
    assert told[0].fix.endswith(", with image")


@pytest.mark.parametrize("spec", [None, [], "x", 3])
def test_no_spec_at_all(spec: object) -> None:
    form = read_form(spec, SharedKVDeploymentSpec)
    assert [v.field for v in form.faults] == ["spec"]
    assert form.spec.model.name


def test_a_role() -> None:
    assert read_form({"replicas": 3}, SharedKVRoleSpec).spec.replicas == 3
    assert [v.field for v in read_form({"replica": 3}, SharedKVRoleSpec).faults] == ["spec.replica"]


def test_places_with_a_fault_hide_what_else_is_said_of_them() -> None:
    form = read_form({**SOUND, "prefill": {"replicas": "2"}, "decode": 7}, SharedKVDeploymentSpec)
    assert form.hides("spec.prefill.replicas")
    assert form.hides("spec.decode.replicas")
    assert form.hides("spec.decode[0]")
    assert not form.hides("spec.prefill.replicasOther")
    assert not form.hides("spec.prefill")


def test_what_was_given_is_not_changed() -> None:
    given = {"engine": {"image": 5, "env": [{"name": "a"}, 3]}, "zzz": {"deep": [1]}}
    read_form(given, SharedKVDeploymentSpec)
    assert given == {"engine": {"image": 5, "env": [{"name": "a"}, 3]}, "zzz": {"deep": [1]}}
