"""The chart, rendered and installed by the real helm."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.harness.api import Api, Manifest
from tests.cluster.harness.helm import Helm

CHART = str(Path(__file__).parents[3] / "charts/plait")
Render = Callable[..., list[Manifest]]


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """`render({"operator": {…}}, namespace="plait-system")`: manifests of the chart with these values."""

    @functools.cache
    def text(values: str, namespace: str, name: str) -> str:
        # A helm that was built without a version takes the cluster for an old one.
        words = ("template", name, CHART, "-n", namespace, "--kube-version", "1.34.0")
        return helm(*words, values=json.loads(values))

    def rendered(
        values: Mapping[str, Any] | None = None, *, namespace: str = "plait-system", name: str = "plait"
    ) -> list[Manifest]:
        told = text(json.dumps(values or {}), namespace, name)
        return [manifest for manifest in yaml.load_all(told, yaml.CSafeLoader) if manifest]

    return rendered


@pytest.fixture(scope="session")
def shared(api: Api) -> str:
    """A restricted namespace for trials, in which nothing is made."""
    name = "chart-trials"
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return restrict(api, name)


@pytest.fixture
def restricted(api: Api, namespace: str) -> str:
    """The test's namespace, restricted."""
    return restrict(api, namespace)


def restrict(api: Api, namespace: str) -> str:
    """Have Pod Security `restricted` enforced there; pods have an account to be made with."""
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    api.patch("v1", "Namespace", namespace, "", label)
    api.until("v1", "ServiceAccount", "default", namespace, bool, what="the default service account")
    return namespace


@pytest.fixture
def installed(helm: Helm, restricted: str) -> Iterator[str]:
    """Namespace of a release `plait` with its defaults, all of it gone after the test (not the CRDs)."""
    # The CRDs may be there from another test: this is also how a kept one is taken over.
    helm("install", "plait", CHART, "-n", restricted, "--take-ownership")
    yield restricted
    helm("uninstall", "plait", "-n", restricted, "--ignore-not-found", "--wait")
