"""The golden path is one story: its steps run in order, and one that failed ends it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cluster.conftest import FAILED, release_finalizers
from tests.cluster.harness.api import Api, Manifest
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.helm import Helm
from tests.cluster.harness.kubectl import CommandError, Kubectl
from tests.cluster.images import recipes

CHART = Path(__file__).parents[3] / "charts/plait"
SYSTEM = "golden-system"
"""Where the release lives; Pod Security `restricted` is enforced there."""
SERVING = "golden"
"""Where the stack of stub engines runs, on the real node."""
FAKE = "golden-h200"
"""Where engine pods go to kwok's nodes."""
CONTROL, RUNTIME = recipes.NAMES.control, recipes.NAMES.runtime


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A step after one that failed would fail for that one's reason."""
    if item.path.parent != Path(__file__).parent or item.parent is None:
        return
    for earlier in item.session.items:
        if earlier is item:
            return
        if earlier.parent is item.parent and earlier.stash.get(FAILED, False):
            pytest.skip(f"an earlier step failed: {earlier.name}")


def values() -> Manifest:
    """Of the release: images that the node has, and so little CPU that all fits on two cores."""
    repository, _, tag = CONTROL.rpartition(":")
    runtime, _, runtime_tag = RUNTIME.rpartition(":")
    control = {"repository": repository, "tag": tag}
    # Not next to nothing: it is also the pods' weight against all else on the machine.
    little = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
    return {
        "images": {
            "pullPolicy": "IfNotPresent",
            "operator": control,
            "router": control,
            "runtime": {"repository": runtime, "tag": runtime_tag},
        },
        "operator": {"replicas": 2, "resources": little},
        "admission": {"replicas": 2, "resources": little},
    }


@pytest.fixture(autouse=True)
def told(request: pytest.FixtureRequest, kubectl: Kubectl) -> Iterator[None]:
    """After a step that failed: what is there, what happened, what the programs said."""
    yield
    if request.node.stash.get(FAILED, False):
        for namespace in (SYSTEM, SERVING, FAKE):
            show(kubectl, namespace)


def show(kubectl: Kubectl, namespace: str) -> None:
    """Print the objects, events and logs of a namespace to standard error."""
    for words in (
        ("get", "skv,pods,deploy,jobs", "-o", "wide"),
        (
            "get",
            "skv",
            "-o",
            "jsonpath={range .items[*].status.conditions[*]}{.type} {.status} {.message}{'\\n'}{end}",
        ),
        ("get", "events", "--sort-by=.lastTimestamp"),
        ("logs", "-l", "app.kubernetes.io/name=plait", "--all-containers", "--prefix", "--tail=15"),
    ):
        try:
            said = kubectl(*words, "-n", namespace)
        except CommandError as error:
            said = error.output
        print(f"\n--- kubectl {' '.join(words[:2])} -n {namespace}\n{said[-6000:]}", file=sys.stderr)


@pytest.fixture(scope="session")
def images(node: Cluster) -> None:
    """All images of the tests are on the node."""
    recipes.load(node, *recipes.NAMES)


@pytest.fixture(scope="module")
def model(plane: Cluster) -> Path:
    """A model's folder on the node, with a config and no weights."""
    return recipes.model(plane.instance.run / "models" / "tiny")


@pytest.fixture(scope="module")
def namespaces(api: Api) -> Iterator[None]:
    """The three; what is left in them goes at the end."""
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    for name, labels in ((SYSTEM, restricted), (SERVING, {}), (FAKE, {})):
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    yield
    for name in (SERVING, FAKE, SYSTEM):
        release_finalizers(api, name)
        api.delete("v1", "Namespace", name)


@pytest.fixture(scope="module")
def released(helm: Helm, images: None, namespaces: None) -> Iterator[None]:
    """The chart is installed by helm; its pods may still be starting."""
    helm("install", "plait", str(CHART), "-n", SYSTEM, "--take-ownership", values=values())
    yield
    helm("uninstall", "plait", "-n", SYSTEM, "--ignore-not-found", "--wait")


@pytest.fixture(scope="module")
def tiny(model: Path) -> Manifest:
    """The chart's own example for a laptop, with the stub engine and hardly any resources."""
    manifest: Manifest = yaml.safe_load((CHART / "examples/laptop-cpu.yaml").read_text())
    manifest["metadata"]["namespace"] = SERVING
    spec = manifest["spec"]
    spec["model"]["source"] = {"hostPath": {"path": str(model)}}
    spec["engine"]["image"] = recipes.NAMES.engine
    little = {"requests": {"cpu": "150m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}
    for role in ("prefill", "decode", "router"):
        spec[role]["resources"] = little
    return manifest
