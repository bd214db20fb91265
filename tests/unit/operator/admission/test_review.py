"""AdmissionReview in, AdmissionReview out."""

import base64
import copy
import json
from typing import Any

import jsonpatch
import pytest
from tests.cluster.admission.matrix import BAD, Bad, manifest

from plait.contract.violation import Violation
from plait_operator.admission.defaults import defaults
from plait_operator.admission.review import (
    MOST_TOLD,
    MalformedReviewError,
    Outcome,
    Webhook,
    line,
    refusal,
    review,
)


def asked(
    new: dict[str, Any] | None,
    old: dict[str, Any] | None = None,
    *,
    operation: str = "",
    resource: str = "sharedkvdeployments",
    subresource: str = "",
) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "resource": {"group": "plait.dev", "version": "v1alpha1", "resource": resource},
            "subResource": subresource,
            "operation": operation or ("CREATE" if old is None else "UPDATE"),
            "name": (new or {}).get("metadata", {}).get("name", ""),
            "namespace": "models",
            "object": new,
            "oldObject": old,
        },
    }


def response(
    new: dict[str, Any] | None,
    old: dict[str, Any] | None = None,
    *,
    webhook: Webhook = Webhook.VALIDATE,
    experimental: frozenset[str] = frozenset(),
    **about: str,
) -> dict[str, Any]:
    answer = review(asked(new, old, **about), webhook=webhook, experimental=experimental).body
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["kind"] == "AdmissionReview"
    assert answer["response"]["uid"] == "u-1"
    told: dict[str, Any] = answer["response"]
    return told


@pytest.mark.parametrize("webhook", list(Webhook))
@pytest.mark.parametrize("row", BAD, ids=lambda row: row.name)
def test_both_webhooks_tell_every_field_in_one_message(row: Bad, webhook: Webhook) -> None:
    told = response(manifest(row.change, cpu=row.cpu), webhook=webhook)
    assert told["allowed"] is False
    status = told["status"]
    assert (status["code"], status["reason"]) == (422, "Invalid")
    lines = status["message"].splitlines()[1:]
    assert sorted(cause["field"] for cause in status["details"]["causes"]) == sorted(row.fields)
    for cause, text in zip(status["details"]["causes"], lines, strict=True):
        reason = cause["message"].partition("Fix: ")[2]
        assert text.startswith(cause["field"])
        assert text.endswith(reason)
        assert cause["field"] not in cause["message"].partition(":")[0], "kubectl puts it in front"
    for field in row.fields:
        assert any(text.startswith((f"{field} = ", f"{field}: ")) for text in lines)
    json.dumps(told)


def test_a_good_one_passes_with_warnings_from_one_of_the_two() -> None:
    good = manifest({})
    assert response(good, webhook=Webhook.MUTATE) == {"uid": "u-1", "allowed": True}
    told = response(good)
    assert told["allowed"] is True
    assert any(text.startswith("spec.router.auth: ") for text in told["warnings"])


def test_what_is_fixed_cannot_be_changed_and_the_rest_is_told_beside_it() -> None:
    old = manifest({}, cpu=True)
    new = manifest({"spec/engine/device": "cuda", "spec/router/policy": "none"}, cpu=True)
    fields = [cause["field"] for cause in response(new, old)["status"]["details"]["causes"]]
    assert {"spec.engine.device", "spec.router.policy"} <= set(fields)
    assert response(manifest({"spec/cache/layout": "replicated"}, cpu=True), old)["allowed"] is True


def test_an_object_that_is_not_sound_any_more_can_be_labelled_and_deleted_but_not_changed() -> None:
    old = manifest({"spec/router/policy": "of-old"})
    labelled = copy.deepcopy(old)
    labelled["metadata"]["labels"] = {"a": "b"}
    assert response(labelled, old)["allowed"] is True
    scaled = manifest({"spec/router/policy": "of-old", "spec/router/replicas": 3})
    assert response(scaled, old)["allowed"] is False
    scaled["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert response(scaled, old)["allowed"] is True
    assert response(None, old, operation="DELETE")["allowed"] is True


def test_status_is_nobodys_business_here() -> None:
    bad = manifest({"spec/router/policy": "x"})
    assert response(bad, manifest({}), subresource="status")["allowed"] is True


@pytest.mark.parametrize(
    ("replicas", "allowed"), [(0, True), (3, True), (-1, False), (2**31, False), ("3", False), (True, False)]
)
def test_roles_and_scales(replicas: Any, allowed: bool) -> None:
    told = {"spec": {"replicas": replicas}, "metadata": {"name": "glm"}}
    other = {"spec": {"replicas": 7}, "metadata": {"name": "glm"}}
    assert response(told, resource="sharedkvroles")["allowed"] is allowed
    assert response(told, other, subresource="scale")["allowed"] is allowed


def test_a_scale_without_a_number_means_none() -> None:
    assert response({"spec": {}}, {"spec": {"replicas": 1}}, subresource="scale")["allowed"] is True
    assert response({"spec": 3}, {"spec": {"replicas": 1}}, subresource="scale")["allowed"] is False


def test_groups_over_nodes_pass_where_the_operator_lets_them() -> None:
    spans = manifest({"spec/prefill/nodesPerGroup": 2})
    assert response(spans)["allowed"] is False
    assert response(spans, experimental=frozenset({"multi-host-groups"}))["allowed"] is True


@pytest.mark.parametrize(
    ("repository", "revision", "family"),
    [
        ("zai-org/GLM-5-FP8", None, "glm-5-fp8"),
        ("zai-org/GLM-5-FP8", "main", "glm-5-fp8"),
        ("deepseek-ai/DeepSeek-V3.2", None, "deepseek-v3.2"),
        ("zai-org/GLM-5-FP8", "3f2a", None),
        ("somebody/GLM-5", None, None),
    ],
)
def test_the_family_of_a_published_model_is_filled_in(
    repository: str, revision: str | None, family: str | None
) -> None:
    body = manifest(
        {
            "spec/model/family": None,
            "spec/model/source": {"hub": {"repo": repository}},
            "spec/model/revision": revision,
        }
    )
    told = response(body, webhook=Webhook.MUTATE)
    if family is None:
        assert "patch" not in told
        return
    assert told["patchType"] == "JSONPatch"
    patched = jsonpatch.apply_patch(body, json.loads(base64.b64decode(told["patch"])))
    assert patched["spec"]["model"]["family"] == family
    assert defaults(patched) == []
    assert review(asked(body), webhook=Webhook.MUTATE).outcome is Outcome.PATCHED


@pytest.mark.parametrize("shape", [{"model_type": "x"}, {}])
def test_what_a_user_wrote_is_not_touched(shape: dict[str, Any]) -> None:
    source = {"hub": {"repo": "zai-org/GLM-5-FP8"}}
    assert defaults(manifest({"spec/model/source": source, "spec/model/family": "mine"})) == []
    body = manifest({"spec/model/source": source, "spec/model/family": None, "spec/model/shape": shape})
    assert defaults(body) == []


@pytest.mark.parametrize(
    "body",
    [{}, {"spec": None}, {"spec": []}, {"spec": {"model": 3}}, {"spec": {"model": {"source": {"hub": 1}}}}],
)
def test_defaults_take_any_form(body: dict[str, Any]) -> None:
    assert defaults(body) == []


def _changed(**request: Any) -> dict[str, Any]:
    told = asked(manifest({}))
    told["request"] |= request
    return told


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (None, "apiVersion"),
        ([], "apiVersion"),
        ({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}, "apiVersion"),
        ({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}, "request"),
        (_changed(uid=None), "request.uid"),
        (_changed(uid=""), "request.uid"),
        (_changed(resource="pods"), "request.resource"),
        (_changed(resource={"group": "apps", "resource": "deployments"}), "request.resource"),
        (_changed(resource={"group": "plait.dev", "resource": "sharedkvcaches"}), "request.resource"),
        (_changed(subResource="exec"), "request.resource"),
        (_changed(subResource=3), "subResource"),
        (_changed(operation="MEND"), "request.operation"),
        (_changed(object=None), "request.object"),
        (_changed(object="x"), "request.object"),
        (_changed(operation="UPDATE", oldObject=None), "request.oldObject"),
    ],
)
def test_what_is_no_review_is_told_by_its_field(body: object, field: str) -> None:
    with pytest.raises(MalformedReviewError, match=field.replace(".", r"\.")):
        review(body, webhook=Webhook.VALIDATE)


@pytest.mark.parametrize("spec", [None, 3, "x", [], {}, {"model": None}, {"engine": {"args": []}}])
def test_an_object_of_any_form_is_refused_not_failed_over(spec: object) -> None:
    for metadata in (None, 3, {}, {"name": 5}, {"name": "x", "labels": 3}):
        body = {"apiVersion": "plait.dev/v1alpha1", "kind": "SharedKVDeployment", "metadata": metadata}
        told = review(_changed(object={**body, "spec": spec}), webhook=Webhook.MUTATE)
        assert told.outcome is Outcome.REFUSED


def test_a_fault_refuses_by_name_and_answers_the_same_request() -> None:
    told = refusal(asked(manifest({})), "cannot")["response"]
    assert told == {
        "uid": "u-1",
        "allowed": False,
        "status": {"code": 500, "reason": "InternalError", "message": "cannot"},
    }
    assert refusal("x", "cannot")["response"]["uid"] == ""


def test_a_line_is_one_line_and_not_long() -> None:
    told = line(Violation("spec.a", {"k": "v\n" * 500}, "two\nlines", "write\none"))
    assert "\n" not in told
    assert told.startswith('spec.a = {"k": "v')
    assert len(told) < 200
    assert line(Violation("spec.a", None, "is missing", "write it")) == "spec.a: is missing. Fix: write it"


def test_an_answer_does_not_grow_without_end() -> None:
    env = [{"name": "A", "value": "1"}] * (MOST_TOLD + 50)
    told = response(manifest({"spec/engine/env": env}))["status"]
    assert len(told["details"]["causes"]) == MOST_TOLD
    assert told["message"].splitlines()[0].endswith(f"{MOST_TOLD + 49} faults")
    assert told["message"].endswith("… and 49 more")
