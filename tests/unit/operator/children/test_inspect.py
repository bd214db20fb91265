"""The Job that reads a model's shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.restricted import faults
from tests.unit.operator.children.given import deployment

from plait_operator.api.resource import SharedKVDeployment
from plait_operator.children.context import Release
from plait_operator.children.inspect import (
    CONTENT,
    SOURCE,
    content_digest,
    inspect_job,
    inspected_map,
    source_digest,
)

PVC = {"pvc": {"claimName": "models", "path": "glm-5"}}
HOST = {"hostPath": {"path": "/models/glm-5"}}
HUB = {"hub": {"repo": "zai-org/GLM-5"}}
PRIVATE = {"hub": {"repo": "zai-org/GLM-5", "secretRef": {"name": "hf", "key": "t"}}}


def given(source: dict[str, Any], *, revision: str | None = None, **spec: Any) -> SharedKVDeployment:
    return deployment(model={"name": "m", "source": source, "revision": revision}, **spec)


def pod(of: SharedKVDeployment) -> dict[str, Any]:
    return inspect_job(of, Release())["spec"]["template"]["spec"]


def inspector(of: SharedKVDeployment) -> dict[str, Any]:
    (only,) = pod(of)["containers"]
    return only


@pytest.mark.parametrize(
    ("source", "revision", "model", "rest"),
    [
        (PVC, None, "/model/glm-5", []),
        ({"pvc": {"claimName": "m"}}, None, "/model", []),
        ({"pvc": {"claimName": "m", "path": "/a/b"}}, None, "/model/a/b", []),
        (HOST, None, "/model", []),
        (HUB, None, "zai-org/GLM-5", []),
        (HUB, "abc", "zai-org/GLM-5", ["--revision", "abc"]),
    ],
)
def test_what_is_read(source: dict[str, Any], revision: str | None, model: str, rest: list[str]):
    told = inspector(given(source, revision=revision))["command"]
    assert told[:5] == ["python3", "-m", "plait.pod.inspect", "--model", model]
    assert told[7:] == rest


def test_the_model_is_mounted_read_only():
    for source, volume in (
        (PVC, {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}),
        (HOST, {"hostPath": {"path": "/models/glm-5", "type": "Directory"}}),
    ):
        assert {"name": "model", **volume} in pod(given(source))["volumes"]
        mounts = {m["name"]: m for m in inspector(given(source))["volumeMounts"]}
        assert mounts["model"] == {"name": "model", "mountPath": "/model", "readOnly": True}
    assert "model" not in {v["name"] for v in pod(given(HUB))["volumes"]}


def test_a_hubs_token_comes_from_its_secret_and_the_engines_environment_is_kept():
    engine = {
        "image": "sglang:0.5.17",
        "env": [{"name": "HF_ENDPOINT", "value": "http://mirror"}, {"name": "HOME", "value": "/root"}],
    }
    env = inspector(given(PRIVATE, engine=engine))["env"]
    by_name = {variable["name"]: variable for variable in env}
    assert len(by_name) == len(env)
    assert by_name["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hf", "key": "t"}}
    assert by_name["HF_ENDPOINT"]["value"] == "http://mirror"
    assert by_name["HOME"]["value"] == "/tmp"
    assert by_name["PYTHONPATH"]["value"] == "/plait/site"
    assert "HF_TOKEN" not in {v["name"] for v in inspector(given(HUB))["env"]}


@pytest.mark.parametrize("source", [PVC, HUB, PRIVATE], ids=["pvc", "hub", "private"])
def test_pod_security_restricted(source: dict[str, Any]):
    assert faults(pod(given(source))) == []


def test_only_a_host_path_is_what_restricted_namespaces_refuse():
    assert faults(pod(given(HOST))) == ["volume model"]


def test_it_ends_by_itself_gets_no_token_and_no_variables_of_services():
    job = inspect_job(given(PVC), Release())["spec"]
    assert job["backoffLimit"] == 1
    assert 0 < job["activeDeadlineSeconds"] <= 3600
    assert job["ttlSecondsAfterFinished"] > 0
    assert pod(given(PVC))["restartPolicy"] == "Never"
    assert pod(given(PVC))["automountServiceAccountToken"] is False
    assert pod(given(PVC))["enableServiceLinks"] is False


def test_it_goes_where_prefill_may_go():
    told = {
        "spec": {"nodeSelector": {"gpu": "h200"}, "tolerations": [{"key": "gpu"}], "restartPolicy": "Always"}
    }
    found = pod(given(PVC, prefill={"podTemplate": told}))
    assert found["nodeSelector"] == {"gpu": "h200"}
    assert {"key": "gpu"} in found["tolerations"]
    assert found["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (given(PVC), given(PVC), True),
        (given(PVC), given({"pvc": {"claimName": "models", "path": "glm-6"}}), False),
        (given(PVC), given(HOST), False),
        (given(HUB), given(HUB, revision="abc"), False),
        (given(HUB), given(PRIVATE), True),
        (given(HUB), given({"hub": {"repo": "zai-org/GLM-6"}}), False),
        (given(PVC), given(PVC, prefill={"replicas": 7}), True),
    ],
)
def test_when_a_model_has_to_be_read_again(one: SharedKVDeployment, other: SharedKVDeployment, same: bool):
    assert (source_digest(one.spec) == source_digest(other.spec)) is same
    names = {inspect_job(d, Release())["metadata"]["name"] for d in (one, other)}
    assert (len(names) == 1) is same


def test_the_map_keeps_what_was_read_and_of_what():
    told = inspected_map(given(PVC), {"hidden_size": 4, "architectures": ["A"]})
    assert told["metadata"]["name"] == "glm-model"
    text = told["data"]["config.json"]
    expected = {SOURCE: source_digest(given(PVC).spec), CONTENT: content_digest(text)}
    assert told["metadata"]["annotations"] == expected
    assert json.loads(told["data"]["config.json"]) == {"hidden_size": 4, "architectures": ["A"]}


def test_names_of_63_characters_fit():
    long = deployment(name="a" * 63)
    assert len(inspect_job(long, Release())["metadata"]["name"]) <= 63
    assert len(inspected_map(long, {})["metadata"]["name"]) <= 63
