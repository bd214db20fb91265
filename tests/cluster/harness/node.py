"""One real node in the cluster's network namespace: containerd, runc, CNI, kubelet, kube-proxy, CoreDNS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml
from tests.cluster.harness import dns, network
from tests.cluster.harness.components import Components
from tests.cluster.harness.images import write_image
from tests.cluster.harness.instance import DNS_SERVICE, NODE, NODE_IP, PODS, Instance
from tests.cluster.harness.kubectl import Kubectl, run
from tests.cluster.harness.waiting import until

NAMES: Final = ("containerd", "kubelet", "kube-proxy")
PAUSE: Final = "localhost/pause:1"

_SECONDS: Final = 120.0


class Node:
    """Starts the node, and takes images in. Pods use `imagePullPolicy: Never` or `IfNotPresent`."""

    def __init__(self, instance: Instance, binaries: Path, components: Components, kubectl: Kubectl) -> None:
        self._instance = instance
        self._binaries = binaries
        self._components = components
        self._kubectl = kubectl

    def start(self) -> None:
        """The node is Ready and names resolve when this returns. ClusterError with a log's end otherwise."""
        # Pods reach each other over the bridge; without this a Service's rules would not see that.
        network.sysctl(self._instance, "net.bridge.bridge-nf-call-iptables", "1")
        self._start_containerd()
        images = self._instance.run / "images"
        for name, image, entry in (("pause", PAUSE, "/pause"), ("coredns", dns.IMAGE, "/coredns")):
            archive = images / f"{name}.tar"
            write_image(archive, image, {entry: self._binaries / name}, entrypoint=[entry])
            self.take(archive)
        self._start_kubelet()
        self._start_proxy()
        until(
            self.ready,
            f"node {NODE} Ready",
            seconds=_SECONDS,
            why_not=lambda: self._components.why("kubelet"),
        )
        self._kubectl.apply(*dns.manifests())
        self._kubectl(
            "-n", "kube-system", "rollout", "status", "deploy/coredns", f"--timeout={_SECONDS:.0f}s"
        )

    def ready(self) -> bool:
        """Whether the node says that it is Ready."""
        for name in NAMES:
            self._components.must_live(name)
        query = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        return self._kubectl("get", "node", NODE, "--ignore-not-found", "-o", query) == "True"

    def take(self, archive: Path) -> None:
        """Import an image archive."""
        run([*self._ctr(), "images", "import", "--snapshotter", "overlayfs", str(archive)], seconds=300)

    def images(self) -> list[str]:
        """Names of the images that the node has."""
        return [
            name
            for name in run([*self._ctr(), "images", "ls", "-q"]).split()
            if not name.startswith("sha256:")
        ]

    def _ctr(self) -> list[str]:
        return ["ctr", "--address", str(self._instance.socket), "--namespace", "k8s.io"]

    def _start_containerd(self) -> None:
        folder = self._instance.containerd
        (folder / "cni").mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text(_containerd(self._instance))
        ipam: dict[str, Any] = {
            "type": "host-local",
            "dataDir": str(folder / "ipam"),
            "ranges": [[{"subnet": PODS}]],
        }
        # Without the route a pod reaches nothing but the bridge.
        ipam["routes"] = [{"dst": "0.0.0.0/0"}]
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True}
        plugins = [{**bridge, "ipam": ipam}, {"type": "portmap", "capabilities": {"portMappings": True}}]
        conflist = {"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}
        (folder / "cni" / "10-bridge.conflist").write_text(json.dumps(conflist))
        self._components.start("containerd", ["containerd", "--config", str(folder / "config.toml")])

        def answers() -> bool:
            self._components.must_live("containerd")
            return bool(run([*self._ctr(), "version"]))

        until(answers, "containerd", seconds=30, why_not=lambda: self._components.why("containerd"))

    def _start_kubelet(self) -> None:
        root = self._instance.run / "kubelet"
        root.mkdir(exist_ok=True)
        # There is nobody to ask beyond the cluster.
        (root / "resolv.conf").write_text("")
        (root / "config.yaml").write_text(yaml.safe_dump(_kubelet(self._instance)))
        flags = {
            "config": root / "config.yaml",
            "kubeconfig": self._instance.kubeconfig("kubelet"),
            "root-dir": root / "root",
            "hostname-override": NODE,
            "node-ip": NODE_IP,
            "cert-dir": root / "pki",
        }
        self._components.start(
            "kubelet", [str(self._binaries / "kubelet"), *(f"--{k}={v}" for k, v in flags.items())]
        )

    def _start_proxy(self) -> None:
        flags = {
            "kubeconfig": self._instance.kubeconfig("proxy"),
            "hostname-override": NODE,
            "cluster-cidr": PODS,
            "proxy-mode": "iptables",
            "bind-address": NODE_IP,
            # These would be written to the host's own conntrack settings.
            "conntrack-max-per-core": 0,
            "conntrack-tcp-timeout-established": 0,
            "conntrack-tcp-timeout-close-wait": 0,
        }
        command = [str(self._binaries / "kube-proxy"), *(f"--{k}={v}" for k, v in flags.items())]
        self._components.start("kube-proxy", command)


def _containerd(instance: Instance) -> str:
    folder = instance.containerd
    return f"""\
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{instance.socket}"
[ttrpc]
  address = "{instance.socket}.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  stream_server_address = "127.0.0.1"
  disable_apparmor = true
  # The machine may lack CAP_SYS_RESOURCE, and then runc cannot lower a score.
  restrict_oom_score_adj = true
  # Below the state folder, so that those of another cluster are never touched.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def _kubelet(instance: Instance) -> dict[str, Any]:
    pki = instance.certificates
    root = instance.run / "kubelet"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_IP,
        "authentication": {
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/kubelet.crt",
        "tlsPrivateKeyFile": f"{pki}/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{instance.socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": instance.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{root}/resolv.conf",
        "podLogsDir": f"{root}/logs",
        "maxPods": 200,
        "healthzBindAddress": "127.0.0.1",
        # Images come by import alone: what is collected is gone.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi"},
        # How long a change of a Secret may take to reach a pod that has it mounted; a minute is usual.
        "syncFrequency": "5s",
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
    }
