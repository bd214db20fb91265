"""Groups over nodes as LeaderWorkerSets, against its API without its controller: the test sets the status."""

from __future__ import annotations

import pytest
from tests.cluster.harness.api import Api, Manifest, RefusedError
from tests.cluster.manifests.cases import CASES, context, engines

VERSION, KIND = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"
SPEC = CASES["groups over two nodes"]

pytestmark = pytest.mark.usefixtures("lws")


def a_set(namespace: str, *, replicas: int, spec: Manifest = SPEC) -> Manifest:
    """The prefill workload."""
    [made] = [m for m in engines(context(spec, namespace=namespace), replicas=replicas) if m["kind"] == KIND]
    return made


def ready(made: Manifest, *, groups: int) -> Manifest:
    """A status as the controller writes it."""
    condition = {
        "type": "Available",
        "status": "True",
        "reason": "AllGroupsReady",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return {
        **{key: made[key] for key in ("apiVersion", "kind")},
        "metadata": {key: made["metadata"][key] for key in ("name", "namespace")},
        "status": {
            "replicas": groups,
            "readyReplicas": groups,
            "updatedReplicas": groups,
            "observedGeneration": made["metadata"]["generation"],
            "conditions": [condition],
        },
    }


def test_specs_and_statuses_go_their_own_ways(api: Api, namespace: str) -> None:
    there = api.apply(a_set(namespace, replicas=2))
    assert there["spec"]["leaderWorkerTemplate"]["size"] == 2
    api.apply(ready(there, groups=2), manager="controller", subresource="status")
    again = api.apply(a_set(namespace, replicas=2))
    assert again["metadata"]["generation"] == 1
    assert again["status"]["readyReplicas"] == 2
    scaled = api.apply(a_set(namespace, replicas=1))
    assert scaled["metadata"]["generation"] == 2
    # What the controller last said is about generation 1: a plan must not take it for an answer.
    assert scaled["status"]["observedGeneration"] == 1


def test_applying_again_writes_nothing(api: Api, namespace: str) -> None:
    first = api.apply(a_set(namespace, replicas=1))["metadata"]["resourceVersion"]
    assert api.apply(a_set(namespace, replicas=1))["metadata"]["resourceVersion"] == first


def test_another_revision_is_another_set(api: Api, namespace: str) -> None:
    other = {**SPEC, "engine": {"image": "lmsysorg/sglang:other"}}
    names = {api.apply(a_set(namespace, replicas=1, spec=spec))["metadata"]["name"] for spec in (SPEC, other)}
    assert len(names) == 2


def test_a_field_beyond_the_table_is_refused(api: Api, namespace: str) -> None:
    """What the other tests apply, they apply with the fields of the table alone."""
    made = a_set(namespace, replicas=1)
    made["spec"]["networkConfig"] = {"subdomainPolicy": "Shared"}
    where = f"/apis/{VERSION}/namespaces/{namespace}/leaderworkersets"
    query = {"fieldValidation": "Strict", "dryRun": "All"}
    with pytest.raises(RefusedError, match="networkConfig"):
        api.raw("POST", where, made, **query)
    del made["spec"]["networkConfig"]
    api.raw("POST", where, made, **query)
