"""The test cluster by hand: `python -m tests.cluster.harness up --node --kwok`, then `kubectl`, then `down`.

binaries              build the programs where they are missing, print their folder
up [--node] [--kwok]  start the cluster that PLAIT_CLUSTER names, leave it running
kubectl ARGS...       kubectl of it
helm ARGS...          helm of it
down                  end it
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.cluster.harness import binaries, host, network
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.failure import ClusterError
from tests.cluster.harness.instance import Instance


def main(words: list[str]) -> int:
    """Exit code of one command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster.harness",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("binaries")
    up = commands.add_parser("up")
    up.add_argument("--node", action="store_true", help="with the real node")
    up.add_argument("--kwok", type=int, metavar="N", default=0, help="with N fake nodes of eight H200")
    commands.add_parser("down")
    for name in ("kubectl", "helm", "guard"):
        commands.add_parser(name, add_help=False)
    chosen, rest = parser.parse_known_args(words)
    if rest and chosen.command not in ("kubectl", "helm", "guard"):
        parser.error(f"unknown words: {' '.join(rest)}")
    cluster = Cluster(Instance.of_environment())
    try:
        return _carry_out(cluster, chosen, rest)
    except ClusterError as failure:
        print(f"cluster: {failure}", file=sys.stderr)
        return 1


def _carry_out(cluster: Cluster, chosen: argparse.Namespace, rest: list[str]) -> int:
    instance = cluster.instance
    if chosen.command == "binaries":
        print(binaries.folder())
    elif chosen.command in ("kubectl", "helm"):
        if not network.exists(instance):
            raise ClusterError(f"cluster {instance.name} is not up")
        program = str(cluster.binaries / chosen.command)
        command = [*network.inside(instance), program, *rest]
        os.execvpe(command[0], command, {**os.environ, "KUBECONFIG": str(instance.kubeconfig())})
    elif chosen.command == "guard":
        return _guard(cluster, rest)
    else:
        with host.locked(instance.lock, wait=False):
            if chosen.command == "down":
                cluster.stop()
            else:
                _up(cluster, node=chosen.node, fake=chosen.kwok)
    return 0


def _up(cluster: Cluster, *, node: bool, fake: int) -> None:
    cluster.start()
    if node:
        cluster.start_node()
    if fake:
        nodes = cluster.start_fake_nodes()
        network.enter(cluster.instance)
        nodes.add(cluster.api, *(f"h200-{number}" for number in range(fake)))
    print(f"cluster {cluster.instance.name} is up; kubeconfig {cluster.instance.kubeconfig()},")
    print(f"for programs run by: ip netns exec {cluster.instance.netns} …")


def _guard(cluster: Cluster, command: list[str]) -> int:
    """The command's code. It stops its cluster itself, unless it is killed."""
    try:
        return subprocess.run(command).returncode
    except KeyboardInterrupt:
        return 130
    finally:
        if not os.environ.get("PLAIT_CLUSTER_KEEP"):
            with host.locked(cluster.instance.lock, wait=False):
                cluster.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
