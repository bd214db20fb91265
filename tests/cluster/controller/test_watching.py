"""Informers and kopf's transport in this process, at a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster.controller.test_applier import child
from tests.cluster.harness.api import PLAIT, Api
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.waiting import until

from plait_operator.apply.connection import Connection
from plait_operator.apply.kinds import CHILDREN, kind_of
from plait_operator.apply.meters import Meters
from plait_operator.controller import apis
from plait_operator.controller.informer import SELECTOR, Informer
from plait_operator.controller.store import Key, Store
from plait_operator.controller.transport import Transport
from plait_operator.controller.watching import GoneError, Watcher
from plait_operator.observed import Ref

MAP = kind_of("v1", "ConfigMap")
REF = Ref("v1", "ConfigMap", "demo-x")


async def eventually(holds: Callable[[], object], seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.02)


class Watched:
    """An informer of ConfigMaps over a store, which can be stopped and started."""

    def __init__(self, connection: Connection, namespace: str, store: Store, meters: Meters) -> None:
        self.watcher = Watcher(connection)
        self.keys: list[Key] = []
        self.store = store
        self.informer = Informer(
            MAP, namespace, watcher=self.watcher, store=store, changed=self.keys.append, meters=meters
        )
        self.key = Key(namespace, "demo")

    def children(self) -> dict[Ref, Any]:
        found = self.store.view(self.key)
        assert found is not None
        return found.children

    async def __aenter__(self) -> Watched:
        self.task = asyncio.create_task(self.informer.run())
        await asyncio.wait_for(self.informer.synced.wait(), 10)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.watcher.close()


@pytest.fixture
def watched(connection: Connection, deployment: Any, namespace: str, store: Store, meters: Meters) -> Watched:
    return Watched(connection, namespace, store, meters)


async def test_changes_arrive_and_name_the_deployment(
    watched: Watched, api: Api, deployment: Any, namespace: str
) -> None:
    async with watched:
        api.create(child(deployment))
        await eventually(lambda: REF in watched.children())
        api.patch("v1", "ConfigMap", "demo-x", namespace, {"data": {"a": "2"}})
        await eventually(lambda: watched.children()[REF]["data"] == {"a": "2"})
        api.delete("v1", "ConfigMap", "demo-x", namespace)
        await eventually(lambda: not watched.children())
    assert set(watched.keys) == {watched.key}
    assert len(watched.keys) == 3


async def test_what_loses_our_label_is_gone_to_us(
    watched: Watched, api: Api, deployment: Any, namespace: str
) -> None:
    async with watched:
        api.create(child(deployment))
        await eventually(lambda: REF in watched.children())
        api.patch("v1", "ConfigMap", "demo-x", namespace, {"metadata": {"labels": None}})
        await eventually(lambda: not watched.children())


async def test_objects_of_others_are_not_even_sent(
    watched: Watched, api: Api, namespace: str, meters: Meters
) -> None:
    async with watched:
        for number in range(20):
            api.create(
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": f"c{number}", "namespace": namespace},
                }
            )
        await asyncio.sleep(0.5)
    assert meters.watch_events.labels("ConfigMap")._value.get() <= 1  # a bookmark


async def test_what_went_while_nobody_watched_is_noticed(
    connection: Connection, api: Api, deployment: Any, namespace: str, store: Store, meters: Meters
) -> None:
    api.create(child(deployment))
    api.create(child(deployment, name="demo-stays"))
    async with Watched(connection, namespace, store, meters) as first:
        await eventually(lambda: len(first.children()) == 2)
    api.delete("v1", "ConfigMap", "demo-x", namespace)
    async with Watched(connection, namespace, store, meters) as second:
        assert [r.name for r in second.children()] == ["demo-stays"]
        assert second.keys == [second.key]
    assert meters.lost_deletes.labels("ConfigMap")._value.get() == 1


async def test_a_watch_from_a_version_long_gone_says_so(
    plane: Cluster, connection: Connection, namespace: str
) -> None:
    plane.plane.compact()
    plane.plane.restart("kube-apiserver")
    watcher = Watcher(connection)
    try:
        with pytest.raises(GoneError):
            async for _ in watcher.events(MAP.path(namespace), selector=SELECTOR, version=1, seconds=5):
                pass
    finally:
        await watcher.close()


async def test_an_informer_goes_on_after_gone(
    plane: Cluster, watched: Watched, api: Api, deployment: Any, meters: Meters
) -> None:
    async with watched:
        api.create(child(deployment))
        await eventually(lambda: REF in watched.children())
        # Its next watch begins where nothing is kept any more.
        watched.informer._version = 1
        plane.plane.restart("kube-apiserver")
        await eventually(lambda: meters.lists.labels("ConfigMap", "gone")._value.get() >= 1, 60)
        api.create(child(deployment, name="demo-new"))
        await eventually(lambda: len(watched.children()) == 2)


async def test_pages_add_up_to_the_whole_list(
    connection: Connection, api: Api, deployment: Any, namespace: str
) -> None:
    for number in range(230):
        api.create(child(deployment, name=f"demo-{number}"))
    watcher = Watcher(connection)
    try:
        pages = [p async for p in watcher.pages(MAP.path(namespace), selector=SELECTOR)]
    finally:
        await watcher.close()
    assert len(pages) == 5  # of 50
    assert len({i["metadata"]["name"] for p in pages for i in p.items}) == 230
    assert len({p.version for p in pages}) == 1


async def test_optional_kinds_are_known(connection: Connection, crds: list[str]) -> None:
    watcher = Watcher(connection)
    try:
        assert await apis.own(watcher)
        there = {k.kind for k in await apis.optional(watcher)}
        assert there <= {k.kind for k in CHILDREN if k.optional}
        assert await apis.served(watcher, kind_of("apps/v1", "Deployment"))
    finally:
        await watcher.close()


def test_kopf_tells_keys_and_writes_nothing(
    connection: Connection, api: Api, namespace: str, deployment: Any, meters: Meters
) -> None:
    store, keys = Store(), []
    transport = Transport(connection, namespaces=[namespace], store=store, changed=keys.append, meters=meters)
    transport.start()
    key = Key(namespace, "demo")
    try:
        until(lambda: key in keys, "the deployment that was there", seconds=15)
        api.patch(PLAIT, "SharedKVDeployment", "demo", namespace, {"spec": {"decode": {"replicas": 4}}})
        until(
            lambda: (v := store.view(key)) and v.body["spec"]["decode"]["replicas"] == 4, "edit", seconds=10
        )
        seen = api.get(PLAIT, "SharedKVDeployment", "demo", namespace)
        assert seen is not None
        meta = seen["metadata"]
        assert meta["generation"] == 2
        assert "annotations" not in meta
        assert "finalizers" not in meta
        assert "status" not in seen
        assert {f["operation"] for f in meta["managedFields"]} == {"Update"}
        assert len(meta["managedFields"]) == 1, "the test's own"
        role = child(deployment, "SharedKVRole", "demo-prefill", spec={"replicas": 2}) | {"apiVersion": PLAIT}
        keys.clear()
        api.create(role)
        until(lambda: key in keys, "the role", seconds=10)
        api.delete(PLAIT, "SharedKVDeployment", "demo", namespace)
        until(lambda: store.view(key) is None, "the delete", seconds=10)
        assert api.list("events.k8s.io/v1", "Event", namespace) == []
    finally:
        transport.stop(timeout_s=10)
    assert not transport.alive
    assert transport.failure == ""
