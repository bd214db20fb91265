"""Clusters beside each other, and ones that were left behind by a start that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster.harness import cgroups, host
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.failure import ClusterError
from tests.cluster.harness.instance import Instance

ROOT = Path(__file__).parents[3]


def other(plane: Cluster) -> Instance:
    """A second cluster beside the one of the tests."""
    name = f"{plane.instance.name}-2"
    return Instance(name, plane.instance.run.parent / name)


def by_hand(instance: Instance, *words: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PLAIT_CLUSTER": instance.name,
        "PLAIT_CLUSTER_RUN": str(instance.run.parent),
    }
    command = [sys.executable, "-m", "tests.cluster.harness", *words]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def done(process: subprocess.Popen[str], *, seconds: float = 180.0) -> str:
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, said
    return said


def nothing_left(instance: Instance) -> None:
    assert not cgroups.processes(instance.cgroup)
    assert not Path("/run/netns", instance.netns).exists()
    assert not instance.run.exists()
    assert not host.mounts_below(instance.run)
    assert not list(cgroups.ROOT.glob(f"*{instance.cgroup}"))


@pytest.mark.full
def test_a_second_cluster_with_a_node_beside_this_one(node: Cluster) -> None:
    """Killed in the middle of its start, started again, ended: this one does not notice."""
    second = other(node)
    before = {name: node.components.pid(name) for name in ("etcd", "kube-apiserver", "kubelet", "containerd")}
    try:
        first = by_hand(second, "up", "--node")
        deadline = time.monotonic() + 120
        while not (second.pids / "containerd").exists():
            assert time.monotonic() < deadline
            assert first.poll() is None, first.communicate()[0]
            time.sleep(0.02)
        os.kill(first.pid, signal.SIGKILL)
        first.communicate(timeout=30)
        assert cgroups.processes(second.cgroup)
        assert "is up" in done(by_hand(second, "up", "--node", "--kwok", "1"))
        told = done(by_hand(second, "kubectl", "get", "nodes", "-o", "name"))
        assert set(told.split()) == {"node/node0", "node/h200-0"}
    finally:
        done(by_hand(second, "down"))
    nothing_left(second)
    done(by_hand(second, "down"))
    assert {name: node.components.pid(name) for name in before} == before
    assert node.start_node().ready()


def test_a_name_in_use_is_refused(plane: Cluster) -> None:
    process = by_hand(plane.instance, "up")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "another process uses this cluster" in said
    assert "PLAIT_CLUSTER" in said


@pytest.mark.parametrize("name", ["", "Upper", "under_score", "a" * 21, "-a"])
def test_names_that_no_namespace_can_have(name: str) -> None:
    with pytest.raises(ValueError, match="cluster name"):
        Instance(name, Path("/tmp/x"))


def test_a_component_that_ends_is_told_with_its_log(plane: Cluster) -> None:
    plane.components.start("failing", ["/bin/sh", "-c", "echo the reason; exit 3"])

    def ended() -> bool:
        return not plane.components.alive("failing")

    deadline = time.monotonic() + 20
    while not ended() and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(ClusterError, match="the reason"):
        plane.components.must_live("failing")
    plane.components.stop("failing")
