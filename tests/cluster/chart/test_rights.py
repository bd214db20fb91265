"""The operator with the chart's own flags and the rights of the chart's own account, and nothing more."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.cluster.chart.conftest import CHART
from tests.cluster.harness.api import PLAIT, Api, Manifest
from tests.cluster.harness.helm import Helm
from tests.cluster.harness.operators import Operators
from tests.cluster.harness.processes import Process
from tests.cluster.harness.waiting import until

from plait_operator.apply.kinds import CHILDREN

EXAMPLES = Path(CHART) / "examples"
REGISTRATION = "admissionregistration.k8s.io/v1"


def example(name: str, namespace: str, **spec: Any) -> Manifest:
    manifest: Manifest = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    manifest["metadata"]["namespace"] = namespace
    manifest["spec"] |= spec
    return manifest


def start(api: Api, operators: Operators, namespace: str) -> Process:
    """As its Deployment would start it."""
    live = api.get("apps/v1", "Deployment", "plait-operator", namespace)
    (container,) = live["spec"]["template"]["spec"]["containers"]
    flags = [flag for flag in container["args"] if not flag.startswith("--health-port")]
    process = operators.operator(*flags, account=f"{namespace}:plait-operator", everywhere=True)
    process.start()
    return process


def refused(process: Process) -> list[str]:
    """Samples of its metrics that tell of a refusal, and lines of its log that do."""
    metrics = httpx.get(process.ready_url.replace("/readyz", "/metrics"), trust_env=False).text
    told = [
        line for line in metrics.splitlines() if line.startswith("plait_operator_writes") and '"403"' in line
    ]
    return told + [line for line in process.log_text().splitlines() if "forbidden" in line.lower()]


def has(api: Api, namespace: str, kind: str, version: str, *names: str) -> None:
    for name in names:
        api.until(version, kind, name, namespace, bool, what=f"{kind} {name}", seconds=60)


def engines(api: Api, namespace: str) -> set[str]:
    """Roles of the engines' Deployments."""
    found = {
        m["metadata"]["labels"].get("plait.dev/role") for m in api.list("apps/v1", "Deployment", namespace)
    }
    return found & {"prefill", "decode"}


@pytest.fixture
def watched(helm: Helm, api: Api, restricted: str) -> str:
    """A release that looks after the test's namespace `chart-watched` alone."""
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "chart-watched"}})
    return "chart-watched"


def test_everything_that_the_examples_need_may_be_done(
    api: Api, operators: Operators, installed: str
) -> None:
    process = start(api, operators, installed)
    # The webhook has no pods here; the release's own namespace is the one that it is not asked about.
    metric = {
        "type": "Pods",
        "pods": {"metric": {"name": "x"}, "target": {"type": "AverageValue", "averageValue": "1"}},
    }
    scaling = {
        "prefill": {"maxReplicas": 2, "metrics": [metric]},
        "decode": {"maxReplicas": 3, "metrics": [metric]},
    }
    api.create(example("glm-5-8xh200", installed, autoscaling=scaling))
    api.create(example("laptop-cpu", installed))
    has(api, installed, "Service", "v1", "glm-5", "glm-5-router-admin", "glm-5-prefill")
    has(api, installed, "Deployment", "apps/v1", "glm-5-router", "tiny-router")
    has(api, installed, "NetworkPolicy", "networking.k8s.io/v1", "glm-5-deny", "glm-5-router")
    has(api, installed, "PodDisruptionBudget", "policy/v1", "glm-5-decode")
    has(api, installed, "RoleBinding", "rbac.authorization.k8s.io/v1", "glm-5-router")
    has(api, installed, "HorizontalPodAutoscaler", "autoscaling/v2", "glm-5-prefill", "glm-5-decode")
    has(api, installed, "SharedKVRole", PLAIT, "glm-5-prefill")
    # One's shape is known, so its engines come; the other's config.json has to be read first.
    until(lambda: engines(api, installed) == {"prefill", "decode"}, "engines", seconds=60)
    until(lambda: api.list("batch/v1", "Job", installed), "inspect Job", seconds=60)
    until(
        lambda: api.get(PLAIT, "SharedKVDeployment", "tiny", installed).get("status"), "a status", seconds=60
    )
    # Away again, finalizer and all.
    for name in ("glm-5", "tiny"):
        api.delete(PLAIT, "SharedKVDeployment", name, installed)
        api.until_gone(PLAIT, "SharedKVDeployment", name, installed, seconds=90)
    assert refused(process) == []


def test_the_webhook_gets_its_certificate_and_an_upgrade_leaves_it_and_the_lease(
    api: Api, helm: Helm, operators: Operators, installed: str
) -> None:
    process = start(api, operators, installed)

    def bundles() -> set[str]:
        kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        found = [api.get(REGISTRATION, kind, f"plait.{installed}") for kind in kinds]
        return {hook["clientConfig"].get("caBundle", "") for m in found for hook in m["webhooks"]}

    until(lambda: len(bundles()) == 1 and "" not in bundles(), "a bundle in both", seconds=30)
    data = api.get("v1", "Secret", "plait-admission-tls", installed)["data"]
    assert b"BEGIN CERTIFICATE" in base64.b64decode(data["tls.crt"])
    assert base64.b64decode(data["ca.crt"]).strip() in base64.b64decode(bundles().pop())
    holder = api.get("coordination.k8s.io/v1", "Lease", "plait-operator", installed)["spec"]["holderIdentity"]
    before = bundles()
    helm("upgrade", "plait", CHART, "-n", installed, "--set", "operator.workers=4")
    lease = api.get("coordination.k8s.io/v1", "Lease", "plait-operator", installed)
    assert lease["spec"]["holderIdentity"] == holder
    assert bundles() == before
    assert api.get("v1", "Secret", "plait-admission-tls", installed)["data"] == data
    assert refused(process) == []
    process.kill()
    helm("uninstall", "plait", "-n", installed, "--wait")
    for version, kind, name in (
        ("coordination.k8s.io/v1", "Lease", "plait-operator"),
        ("v1", "Secret", "plait-admission-tls"),
    ):
        assert api.get(version, kind, name, installed) is None


def test_with_watched_namespaces_it_does_its_work_there_and_sees_no_other(
    api: Api, helm: Helm, operators: Operators, watched: str, restricted: str
) -> None:
    values = {"watchNamespaces": [watched], "admission": {"enabled": False}}
    helm("install", "plait", CHART, "-n", restricted, "--take-ownership", values=values)
    try:
        process = start(api, operators, restricted)
        api.create(example("glm-5-8xh200", watched))
        api.create(example("glm-5-8xh200", restricted))
        has(api, watched, "Deployment", "apps/v1", "glm-5-router")
        until(lambda: engines(api, watched) == {"prefill", "decode"}, "engines", seconds=60)
        assert api.get("apps/v1", "Deployment", "glm-5-router", restricted) is None
        api.delete(PLAIT, "SharedKVDeployment", "glm-5", watched)
        api.until_gone(PLAIT, "SharedKVDeployment", "glm-5", watched, seconds=90)
        api.delete(PLAIT, "SharedKVDeployment", "glm-5", restricted)
        assert refused(process) == []
    finally:
        helm("uninstall", "plait", "-n", restricted, "--wait")


def test_of_other_peoples_secrets_it_sees_none(api: Api, plane: Any, installed: str) -> None:
    api.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": installed}})
    mine = Api(plane.instance, token=api.token("plait-operator", installed))
    try:
        answers = {}
        for path in (
            f"/api/v1/namespaces/{installed}/secrets/theirs",
            f"/api/v1/namespaces/{installed}/secrets",
            "/api/v1/secrets",
            f"/api/v1/namespaces/{installed}/secrets/plait-admission-tls",
        ):
            try:
                mine.raw("GET", path)
                answers[path.rpartition("/")[2]] = 200
            except Exception as error:
                answers[path.rpartition("/")[2]] = getattr(error, "code", 0)
        assert answers == {"theirs": 403, "secrets": 403, "plait-admission-tls": 200}
        for kind in CHILDREN:
            if not kind.optional:
                mine.raw("GET", kind.path(installed), limit="1")
    finally:
        mine.close()
