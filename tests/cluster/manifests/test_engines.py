"""Engine manifests on a real API server: taken as they are, without a warning, and applied twice as once."""

from __future__ import annotations

import pytest
from tests.cluster.harness.api import Api, Manifest, RefusedError
from tests.cluster.harness.waiting import until
from tests.cluster.manifests.cases import CASES, GLM, context, engines, pods

pytestmark = pytest.mark.usefixtures("lws")
APPLY = "application/apply-patch+yaml"


def collection(manifest: Manifest) -> str:
    """The path of the manifest's kind in its namespace."""
    version = manifest["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{manifest['metadata']['namespace']}/{manifest['kind'].lower()}s"


def try_out(api: Api, manifest: Manifest) -> Manifest:
    """Server-side apply as a trial; a field that the API server does not know is refused."""
    query = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "tests", "force": "true"}
    where = f"{collection(manifest)}/{manifest['metadata']['name']}"
    told: Manifest = api.raw("PATCH", where, manifest, content=APPLY, **query)
    return told


@pytest.mark.parametrize("name", ["glm", "g" * 63], ids=["short name", "63 characters"])
@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_the_engines(api: Api, namespace: str, case: str, name: str) -> None:
    for manifest in engines(context(CASES[case], namespace=namespace, name=name)):
        told = try_out(api, manifest)
        assert told["metadata"]["name"] == manifest["metadata"]["name"]


@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_the_pods_themselves(api: Api, namespace: str, case: str) -> None:
    """A LeaderWorkerSet's templates are opaque to the API server, and a Deployment's are checked less."""
    api.until("v1", "ServiceAccount", "default", namespace, bool, what="the default service account")
    if "priorityClassName" in CASES[case].get("pods", {}):
        api.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": "high"},
                "value": 1,
            }
        )
    templates = [
        t for m in engines(context(CASES[case], namespace=namespace)) if "spec" in m for t in pods(m)
    ]
    assert len(templates) >= 2
    for number, template in enumerate(templates):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": f"engine-{number}", "namespace": namespace},
            "spec": template["spec"],
        }
        told = api.raw("POST", collection(pod), pod, dryRun="All", fieldValidation="Strict")
        assert told["spec"]["containers"][0]["name"] == "engine"


def test_applying_again_writes_nothing(api: Api, namespace: str) -> None:
    manifests = engines(context(CASES["GLM-5 on 8 x H200 with RDMA"], namespace=namespace))
    for manifest in manifests:
        api.apply(manifest)

        def written(manifest: Manifest = manifest) -> bool:
            """Whether an apply changes what stands there. Controllers of Kubernetes write, too."""
            where = (manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"], namespace)
            before = api.get(*where)
            assert before is not None
            return api.apply(manifest)["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]

        name = manifest["metadata"]["name"]
        until(lambda written=written: not written(), f"an apply of {name} that writes nothing", seconds=20)


def test_a_contract_cannot_be_changed(api: Api, namespace: str) -> None:
    made = engines(context(GLM, namespace=namespace))[0]
    api.apply(made)
    with pytest.raises(RefusedError, match="immutable"):
        api.apply({**made, "data": {"contract.json": "{}"}})


def test_two_revisions_stand_side_by_side(api: Api, namespace: str) -> None:
    """Another image is another workload: nothing is changed in place, and selectors do not overlap."""
    other = {**GLM, "engine": {"image": "lmsysorg/sglang:other"}}
    made = [m for spec in (GLM, other) for m in engines(context(spec, namespace=namespace), replicas=0)]
    for manifest in made:
        api.apply(manifest)
    there = api.list("apps/v1", "Deployment", namespace)
    assert len(there) == 4
    assert all(d["metadata"]["generation"] == 1 for d in there)
    selectors = [tuple(sorted(d["spec"]["selector"]["matchLabels"].items())) for d in there]
    assert len(set(selectors)) == 4
