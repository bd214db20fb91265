"""Namespaces with and without the webhooks, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cluster.harness.api import Api, Manifest, path
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.operators import Operators

Create = Callable[[str, Manifest], Manifest]


@pytest.fixture(scope="session")
def guarded(plane: Cluster, crds: list[str]) -> Iterator[str]:
    """A namespace whose deployments the admission server is asked about."""
    name = "admission-guarded"
    _namespace(plane.api, name)
    made = Operators(plane, name)
    made.admission()
    yield name
    made.end(tell=False)
    plane.api.delete("v1", "Namespace", name)


@pytest.fixture(scope="session")
def unguarded(plane: Cluster, crds: list[str]) -> Iterator[str]:
    """A namespace without webhooks: schema and CEL rules alone."""
    name = "admission-unguarded"
    _namespace(plane.api, name)
    yield name
    plane.api.delete("v1", "Namespace", name)


@pytest.fixture(scope="session")
def dry_run(plane: Cluster) -> Create:
    """Create as `kubectl create --dry-run=server` would: strict about unknown fields, nothing is stored."""

    def create(namespace: str, manifest: Manifest) -> Manifest:
        where = path(manifest["apiVersion"], manifest["kind"], namespace)
        query: dict[str, Any] = {"dryRun": "All", "fieldValidation": "Strict"}
        told: Manifest = plane.api.raw("POST", where, manifest, **query)
        return told

    return create


def _namespace(api: Api, name: str) -> None:
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
