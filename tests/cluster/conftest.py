"""Tests against a real Kubernetes: the first that needs a part of it starts that, the end stops all.

    plane      control plane; this process is in its network namespace from then on
    node       with the real node as well
    kwok       fake nodes of eight H200 each (`kwok.add(api, "name")`); two are there from the start
    api        the API server as JSON;  kubectl, helm: the programs
    namespace  a new one for each test, removed after it
    crds       Plait's CRDs are there
    operators, operator_process, admission_process   the checkout's own processes, see harness/processes.py

PLAIT_CLUSTER names the cluster (default `tests`), so that several runs can go on at once.
PLAIT_CLUSTER_KEEP=1 leaves it up after the run, to look at; the next run starts anew.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.harness import host, network
from tests.cluster.harness.api import PLAIT, Api, Manifest
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.fake_nodes import FakeNodes
from tests.cluster.harness.helm import Helm
from tests.cluster.harness.instance import Instance
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.operators import Operators
from tests.cluster.harness.processes import Process

from plait_operator.api.crd import crds as definitions

FOLDER = Path(__file__).parent
FAILED = pytest.StashKey[bool]()
_NUMBERS = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All here are `cluster` tests, and may wait long on a busy machine.

    Those of the control plane itself come first, while nothing is in it: one kills the API server, which must
    wait until no namespace is on its way out.
    """
    items.sort(key=lambda item: item.path != FOLDER / "smoke/test_plane.py")
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Fixtures look up whether their test failed, to print what helps then."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster with its control plane up."""
    cluster = Cluster(Instance.of_environment())
    needs_node = any("node" in getattr(item, "fixturenames", ()) for item in request.session.items)
    with host.locked(cluster.instance.lock, wait=False):
        # Before the network namespace is entered: packages and modules cannot be had from in there.
        host.require(node=needs_node)
        cluster.start()
        network.enter(cluster.instance)
        yield cluster
        if request.session.testsfailed:
            print(f"\nlogs of the cluster: {cluster.keep_logs()}", file=sys.stderr)
        if not os.environ.get("PLAIT_CLUSTER_KEEP"):
            cluster.stop()


@pytest.fixture(scope="session")
def node(plane: Cluster) -> Cluster:
    """The cluster with its real node Ready."""
    plane.start_node()
    return plane


@pytest.fixture(scope="session")
def kwok(plane: Cluster) -> FakeNodes:
    """Fake nodes; `h200-a` and `h200-b` are there."""
    nodes = plane.start_fake_nodes()
    nodes.add(plane.api, "h200-a", "h200-b")
    return nodes


@pytest.fixture(scope="session")
def api(plane: Cluster) -> Api:
    """As admin."""
    return plane.api


@pytest.fixture(scope="session")
def kubectl(plane: Cluster) -> Kubectl:
    return plane.kubectl


@pytest.fixture(scope="session")
def helm(plane: Cluster) -> Helm:
    return plane.helm


@pytest.fixture(scope="session")
def crds(plane: Cluster) -> list[str]:
    """Names of Plait's CRDs, which are established."""
    made = definitions()
    plane.api.establish(*made)
    return [manifest["metadata"]["name"] for manifest in made]


@pytest.fixture
def namespace(api: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new namespace, named after the test."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")
    name = f"t{next(_NUMBERS)}-{words[:40]}".rstrip("-")
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    release_finalizers(api, name)
    api.delete("v1", "Namespace", name)


def release_finalizers(api: Api, namespace: str) -> None:
    """Nobody is left to drain: take the finalizers off, or the namespace would never go."""
    if (
        api.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "sharedkvdeployments.plait.dev")
        is None
    ):
        return
    gone: Manifest = {"metadata": {"finalizers": None}}
    for resource in api.list(PLAIT, "SharedKVDeployment", namespace):
        if resource["metadata"].get("finalizers"):
            api.patch(PLAIT, "SharedKVDeployment", resource["metadata"]["name"], namespace, gone)


@pytest.fixture
def operators(
    plane: Cluster, crds: list[str], namespace: str, request: pytest.FixtureRequest
) -> Iterator[Operators]:
    """Makes operators and admission servers for this test's namespace; ends them all after it."""
    made = Operators(plane, namespace)
    yield made
    made.end(tell=request.node.stash.get(FAILED, False))


@pytest.fixture
def operator_process(operators: Operators) -> Process:
    """An operator that watches this test's namespace, started and ready."""
    process = operators.operator()
    process.start()
    return process


@pytest.fixture
def admission_process(operators: Operators) -> Process:
    """The admission server, started, with its webhooks registered for this test's namespace."""
    return operators.admission()
