"""Parts of the controller in this very process, against the real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cluster.harness.api import PLAIT, Api
from tests.cluster.harness.cluster import Cluster

from plait_operator.apply.applier import Applier
from plait_operator.apply.client import Client
from plait_operator.apply.connection import Connection
from plait_operator.apply.events import Recorder
from plait_operator.apply.fence import Fence, NoFence
from plait_operator.apply.limit import Limiter
from plait_operator.apply.meters import Meters
from plait_operator.controller.store import Store

SPEC = {
    "model": {"name": "glm-5", "family": "glm-5-fp8", "source": {"pvc": {"claimName": "weights"}}},
    "engine": {"image": "sglang:v0.5.17"},
}


@pytest.fixture
def connection(plane: Cluster) -> Connection:
    return Connection.load(plane.instance.kubeconfig())


@pytest.fixture
def meters() -> Meters:
    return Meters()


@pytest.fixture
def make_client(connection: Connection, meters: Meters) -> Iterator[Callable[[Fence], Client]]:
    """A client behind a fence."""
    made = []

    def make(fence: Fence) -> Client:
        client = Client(
            connection, fence=fence, limiter=Limiter(rate=500, burst=500), meters=meters, timeout_s=10
        )
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(make_client: Callable[[Fence], Client]) -> Client:
    return make_client(NoFence())


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def applier(client: Client, store: Store) -> Applier:
    return Applier(client, Recorder("tests"), store)


@pytest.fixture
def deployment(api: Api, crds: list[str], namespace: str, store: Store) -> dict[str, Any]:
    """A SharedKVDeployment as it is stored, also in `store`."""
    body = api.create(
        {
            "apiVersion": PLAIT,
            "kind": "SharedKVDeployment",
            "metadata": {"name": "demo", "namespace": namespace},
            "spec": SPEC,
        }
    )
    store.put_deployment(body)
    return body
