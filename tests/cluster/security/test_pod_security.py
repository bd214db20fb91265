"""Pod Security `restricted`, enforced by a real API server, lets in what is Plait's own: router, inspection.

Operator, admission and the chart's test run in such a namespace in the golden path. Engine pods are not of
this kind: what they need beyond it, each for its reason, is told in docs/pods.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.cluster.harness.api import Api, Manifest, RefusedError

from plait_operator.api.resource import SharedKVDeployment
from plait_operator.children.context import Context, Release
from plait_operator.children.inspect import inspect_job
from plait_operator.children.router import router

CHART = Path(__file__).parents[3] / "charts/plait"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))


def deployment(example: Path, namespace: str, *, source: Manifest | None = None) -> SharedKVDeployment:
    manifest = yaml.safe_load(example.read_text())
    manifest["metadata"] |= {"namespace": namespace, "uid": "0"}
    if source is not None:
        manifest["spec"]["model"]["source"] = source
    return SharedKVDeployment.of(manifest)


def pod_of(template: Manifest, namespace: str) -> Manifest:
    meta = {**template.get("metadata", {}), "name": "tried", "namespace": namespace}
    spec = {**template["spec"], "serviceAccountName": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


@pytest.fixture
def restricted(api: Api, namespace: str) -> str:
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    api.patch("v1", "Namespace", namespace, "", labels)
    api.until("v1", "ServiceAccount", "default", namespace, bool, what="the default account")
    return namespace


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_routers(api: Api, restricted: str, example: Path) -> None:
    made = router(Context(deployment=deployment(example, restricted), release=Release()))
    api.create(pod_of(made["spec"]["template"], restricted), dry_run=True)


@pytest.mark.parametrize(
    "source",
    [
        {"pvc": {"claimName": "models", "path": "glm"}},
        {"hub": {"repo": "lab/model", "secretRef": {"name": "hub"}}},
    ],
    ids=["claim", "hub"],
)
def test_inspection(api: Api, restricted: str, source: Manifest) -> None:
    job = inspect_job(deployment(EXAMPLES[0], restricted, source=source), Release())
    api.create(pod_of(job["spec"]["template"], restricted), dry_run=True)


def test_it_is_enforced(api: Api, restricted: str) -> None:
    """The same pod with one more right is not let in."""
    made = router(Context(deployment=deployment(EXAMPLES[0], restricted), release=Release()))
    pod = pod_of(made["spec"]["template"], restricted)
    pod["spec"]["hostNetwork"] = True
    with pytest.raises(RefusedError, match="violates PodSecurity"):
        api.create(pod, dry_run=True)
