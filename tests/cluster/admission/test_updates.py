"""What may be changed, and what always may: labels, finalizers, the end."""

import pytest
from tests.cluster.admission.matrix import manifest
from tests.cluster.harness.api import PLAIT, Api, Manifest, RefusedError
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.operators import Operators

KIND = "SharedKVDeployment"


def made(
    api: Api, namespace: str, name: str, change: Manifest | None = None, *, cpu: bool = False
) -> Manifest:
    body = manifest({"metadata/name": name, **(change or {})}, cpu=cpu)
    body["metadata"]["namespace"] = namespace
    return api.create(body)


@pytest.mark.parametrize(
    ("patch", "fields"),
    [
        ({"engine": {"device": "cuda"}}, {"spec.engine.device"}),
        ({"cache": {"pageSize": 128}}, {"spec.cache.pageSize"}),
        (
            {"engine": {"device": "cuda"}, "router": {"policy": "x"}, "decode": {"dataParallel": 2}},
            {"spec.engine.device", "spec.router.policy", "spec.decode.dataParallel"},
        ),
    ],
    ids=["device", "page", "three"],
)
def test_a_change_is_refused_with_all_that_is_wrong(
    api: Api, guarded: str, patch: Manifest, fields: set[str], request: pytest.FixtureRequest
) -> None:
    name = f"fixed-{request.node.callspec.id}"
    made(api, guarded, name, cpu=True)
    with pytest.raises(RefusedError) as refused:
        api.patch(PLAIT, KIND, name, guarded, {"spec": patch})
    assert {cause["field"] for cause in refused.value.causes} == fields
    assert len(refused.value.message.splitlines()) > len(fields)
    api.delete(PLAIT, KIND, name, guarded)


def test_a_new_layout_is_a_new_revision(api: Api, guarded: str) -> None:
    made(api, guarded, "layout")
    told = api.patch(PLAIT, KIND, "layout", guarded, {"spec": {"cache": {"layout": "replicated"}}})
    assert told["spec"]["cache"]["layout"] == "replicated"
    assert told["metadata"]["generation"] == 2
    api.delete(PLAIT, KIND, "layout", guarded)


def test_an_object_that_rules_no_longer_let_in_is_labelled_mended_and_deleted(
    api: Api, namespace: str, operators: Operators
) -> None:
    # Before there are webhooks: the CRD alone lets more in.
    bad = {"spec/engine/args": {"dcp_size": 2}, "metadata/finalizers": ["plait.dev/drain"]}
    made(api, namespace, "old", bad)
    made(api, namespace, "mended", bad)
    operators.admission()
    refused = r"spec\.engine\.args\.dcp_size = 2"
    labels = {"metadata": {"labels": {"a": "b"}}}
    assert api.patch(PLAIT, KIND, "old", namespace, labels)["metadata"]["labels"] == {"a": "b"}
    with pytest.raises(RefusedError, match=refused):
        api.patch(PLAIT, KIND, "old", namespace, {"spec": {"router": {"replicas": 3}}})
    mended = {"spec": {"engine": {"args": None}, "router": {"replicas": 3}}}
    api.patch(PLAIT, KIND, "mended", namespace, mended)
    for name in ("old", "mended"):
        api.delete(PLAIT, KIND, name, namespace)
        assert api.get(PLAIT, KIND, name, namespace) is not None
        api.patch(PLAIT, KIND, name, namespace, {"metadata": {"finalizers": []}})
        assert api.get(PLAIT, KIND, name, namespace) is None


def test_status_scale_and_roles(api: Api, guarded: str, kubectl: Kubectl) -> None:
    made(api, guarded, "scaled")
    api.patch(PLAIT, KIND, "scaled", guarded, {"status": {"endpoint": "http://x"}}, subresource="status")
    kubectl("scale", "skv/scaled", "--replicas=5", "-n", guarded)
    told = api.get(PLAIT, KIND, "scaled", guarded)
    assert told is not None
    assert told["spec"]["decode"]["replicas"] == 5
    with pytest.raises(RefusedError):
        api.patch(PLAIT, KIND, "scaled", guarded, {"spec": {"replicas": -1}}, subresource="scale")
    role = {
        "apiVersion": PLAIT,
        "kind": "SharedKVRole",
        "metadata": {"name": "scaled-prefill", "namespace": guarded},
        "spec": {"replicas": 2},
    }
    api.create(role)
    with pytest.raises(RefusedError, match=r"spec\.replicas"):
        api.patch(PLAIT, "SharedKVRole", "scaled-prefill", guarded, {"spec": {"replicas": "3"}})
    api.delete(PLAIT, "SharedKVRole", "scaled-prefill", guarded)
    api.delete(PLAIT, KIND, "scaled", guarded)


def test_the_family_of_a_published_model_is_filled_in(api: Api, guarded: str) -> None:
    source = {"hub": {"repo": "zai-org/GLM-5-FP8"}}
    told = made(api, guarded, "published", {"spec/model/source": source, "spec/model/family": None})
    assert told["spec"]["model"]["family"] == "glm-5-fp8"
    # It is not the user's, so it follows the source, and goes with one that is not known.
    for repository, family in (("deepseek-ai/DeepSeek-V3.2", "deepseek-v3.2"), ("lab/fork", None)):
        other = {"spec": {"model": {"source": {"hub": {"repo": repository}}}}}
        told = api.patch(PLAIT, KIND, "published", guarded, other)
        assert told["spec"]["model"].get("family") == family
    api.delete(PLAIT, KIND, "published", guarded)


def test_a_generated_name_passes(api: Api, guarded: str) -> None:
    body = manifest({"metadata": {"generateName": "glm-", "namespace": guarded}})
    where = f"/apis/{PLAIT}/namespaces/{guarded}/sharedkvdeployments"
    told = api.raw("POST", where, body)
    api.delete(PLAIT, KIND, told["metadata"]["name"], guarded)
