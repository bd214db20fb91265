"""A cluster as a whole: started fresh, extended by a node or fake nodes, ended without a trace."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path

from tests.cluster.harness import binaries, certificates, cgroups, host, network
from tests.cluster.harness.api import Api
from tests.cluster.harness.components import Components
from tests.cluster.harness.fake_nodes import FakeNodes
from tests.cluster.harness.helm import Helm
from tests.cluster.harness.instance import Instance
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.node import Node
from tests.cluster.harness.plane import Plane


class Cluster:
    """One cluster. Whoever starts it should hold `host.locked(instance.lock)`."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.components = Components(instance)
        self._node: Node | None = None
        self._fake_nodes: FakeNodes | None = None

    @cached_property
    def binaries(self) -> Path:
        """Folder of the programs, built when first asked for."""
        return binaries.folder()

    @cached_property
    def plane(self) -> Plane:
        return Plane(self.instance, self.binaries, self.components)

    @cached_property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.instance, self.binaries)

    @cached_property
    def helm(self) -> Helm:
        return Helm(self.instance, self.binaries)

    @cached_property
    def api(self) -> Api:
        """As admin. Works only in a process that has entered the network namespace."""
        return Api(self.instance)

    def start(self) -> None:
        """The control plane, new. What a former start left, even a killed one, is removed first."""
        host.require(node=False)
        self.stop()
        self.instance.run.mkdir(parents=True)
        try:
            cgroups.create(self.instance.cgroup)
            network.create(self.instance)
            certificates.write(self.instance)
            self.plane.start()
        except BaseException:
            self.keep_logs()
            self.stop()
            raise

    def start_node(self) -> Node:
        """The real node; the same one when asked again."""
        if self._node is None:
            host.require(node=True)
            host.save_sysctls(self.instance.run.parent, self.instance.name)
            node = Node(self.instance, self.binaries, self.components, self.kubectl)
            node.start()
            self._node = node
        return self._node

    def start_fake_nodes(self) -> FakeNodes:
        """kwok, without a node yet; the same one when asked again."""
        if self._fake_nodes is None:
            fake = FakeNodes(self.instance, self.binaries, self.components)
            fake.start()
            self._fake_nodes = fake
        return self._fake_nodes

    def keep_logs(self) -> Path:
        """Copy the logs beside the run folder, where they outlive it; the folder they are in."""
        kept = self.instance.run.parent / f"{self.instance.name}-logs"
        shutil.rmtree(kept, ignore_errors=True)
        if self.instance.logs.exists():
            shutil.copytree(self.instance.logs, kept)
        return kept

    def stop(self) -> None:
        """End every process of it and remove all it has made. Again is fine; nothing needs to be up."""
        cgroups.kill(self.instance.cgroup)
        host.unmount_below(self.instance.run)
        network.delete(self.instance)
        cgroups.remove(self.instance.cgroup)
        runs = self.instance.run.parent
        if runs.exists():
            up = [path.parent.name for path in runs.glob("*/kubelet") if path.parent != self.instance.run]
            host.restore_sysctls(runs, self.instance.name, up)
        shutil.rmtree(self.instance.run, ignore_errors=True)
        if self.instance.run.exists():
            shutil.rmtree(self.instance.run)
