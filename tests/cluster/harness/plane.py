"""The control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, a process each."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.cluster.harness import network
from tests.cluster.harness.api import Api
from tests.cluster.harness.components import Components
from tests.cluster.harness.failure import ClusterError
from tests.cluster.harness.instance import ETCD, NODE_IP, PODS, SERVICES, Instance
from tests.cluster.harness.waiting import until

NAMES: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")

# The stock 20 and 50 requests a second would make 20 pods a second.
_FAST: Final = ("--kube-api-qps=500", "--kube-api-burst=1000")
_GO: Final = {
    "kube-apiserver": {"GOGC": "300", "GOMEMLIMIT": "10GiB"},
    "kube-controller-manager": {"GOGC": "300", "GOMEMLIMIT": "3GiB"},
}
"""On two cores the collector takes from everybody what memory could spare: with a thousand deployments a heap
of some gigabytes is gone through again and again. Near the limit it works as often as it must."""
_SECONDS: Final = 90.0
"""For each component to be ready; a tenth of it is usual, and a machine may be busy."""


class Plane:
    """Starts the four, and restarts each at will."""

    def __init__(self, instance: Instance, binaries: Path, components: Components) -> None:
        self._instance = instance
        self._binaries = binaries
        self._components = components

    def start(self) -> None:
        """All four, ready when this returns. ClusterError with the end of a log otherwise."""
        for name in NAMES:
            self.start_one(name)
        until(self._default_account, "ServiceAccount default", seconds=_SECONDS, why_not=self._why(NAMES[2]))

    def start_one(self, name: str) -> None:
        """One of NAMES, ready when this returns."""
        command, ready = {
            "etcd": (self._etcd, self._etcd_ready),
            "kube-apiserver": (self._apiserver, self._apiserver_ready),
            "kube-controller-manager": (self._controller_manager, lambda: self._healthy(10257)),
            "kube-scheduler": (self._scheduler, lambda: self._healthy(10259)),
        }[name]
        environment = {key: told for key, told in _GO.get(name, {}).items() if key not in os.environ}
        self._components.start(name, [str(self._binaries / name), *command()], environment=environment)
        self.await_ready(name, ready)

    def await_ready(self, name: str, ready: Callable[[], bool]) -> None:
        """Until `ready`, as long as the process lives."""

        def look() -> bool:
            self._components.must_live(name)
            return ready()

        until(look, f"{name} ready", seconds=_SECONDS, why_not=self._why(name))

    def restart(self, name: str) -> None:
        """Kill it, as a crash does, and start it again (in peace an API server waits for open watches).

        An API server that starts serves custom resources a moment later than the rest. A namespace that goes
        in that moment leaves its own behind, out of everybody's reach: those that go are waited for.
        """
        if name == "kube-apiserver":
            with contextlib.suppress(ClusterError):
                until(self._no_namespace_goes, "no namespace goes", seconds=30)
        self._components.stop(name, seconds=0)
        self.start_one(name)

    def _no_namespace_goes(self) -> bool:
        found = Api(self._instance).list("v1", "Namespace")
        return not any(namespace["metadata"].get("deletionTimestamp") for namespace in found)

    def compact(self) -> None:
        """Make etcd forget all revisions but the last: a watch from an older one then gets 410 Gone."""
        status = json.loads(self._curl(f"{ETCD}/v3/maintenance/status", "-d", "{}"))
        revision = status["header"]["revision"]
        self._curl(f"{ETCD}/v3/kv/compaction", "-d", json.dumps({"revision": revision, "physical": True}))

    def _why(self, name: str) -> Callable[[], str]:
        return lambda: self._components.why(name)

    def _curl(self, *words: str) -> str:
        """What a request from inside the network namespace answers; '' where it fails."""
        command = [*network.inside(self._instance), "curl", "-fsSk", "--max-time", "5", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout

    def _etcd(self) -> list[str]:
        peer = "http://127.0.0.1:2380"
        return [
            "--name=etcd",
            f"--data-dir={self._instance.run / 'etcd'}",
            # Nothing here outlives the run, and a disk that is busy must not slow the tests.
            "--unsafe-no-fsync",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=etcd={peer}",
            f"--quota-backend-bytes={4 << 30}",
        ]

    def _etcd_ready(self) -> bool:
        return '"health":"true"' in self._curl(f"{ETCD}/health")

    def _apiserver(self) -> list[str]:
        pki = self._instance.certificates
        return [
            f"--etcd-servers={ETCD}",
            f"--bind-address={NODE_IP}",
            "--secure-port=6443",
            f"--advertise-address={NODE_IP}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            # PodSecurity, ResourceQuota and the webhooks are on by default.
            "--enable-admission-plugins=NodeRestriction",
            f"--client-ca-file={pki}/ca.crt",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
            f"--kubelet-client-key={pki}/apiserver-kubelet.key",
            f"--kubelet-certificate-authority={pki}/ca.crt",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            f"--requestheader-client-ca-file={pki}/front-ca.crt",
            f"--proxy-client-cert-file={pki}/front.crt",
            f"--proxy-client-key-file={pki}/front.key",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-allowed-names=front-proxy-client",
            # A webhook behind a Service is reached by the pods' addresses, not by the Service's.
            "--enable-aggregator-routing=true",
            "--allow-privileged=true",
        ]

    def _apiserver_ready(self) -> bool:
        pki = self._instance.certificates
        cert = ("--cert", f"{pki}/admin.crt", "--key", f"{pki}/admin.key")
        return self._curl(*cert, f"https://{NODE_IP}:6443/readyz") == "ok"

    def _controller_manager(self) -> list[str]:
        pki = self._instance.certificates
        return [
            *self._kubeconfigs("controller-manager"),
            f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--use-service-account-credentials=true",
            # The real node's pods have a range in its CNI, those of fake nodes come from kwok.
            "--allocate-node-cidrs=false",
            f"--cluster-cidr={PODS}",
            f"--service-cluster-ip-range={SERVICES}",
            "--leader-elect=false",
            "--concurrent-deployment-syncs=10",
            *_FAST,
        ]

    def _scheduler(self) -> list[str]:
        return [*self._kubeconfigs("scheduler"), "--leader-elect=false", *_FAST]

    def _kubeconfigs(self, user: str) -> list[str]:
        path = self._instance.kubeconfig(user)
        flags = [f"--{kind}kubeconfig={path}" for kind in ("", "authentication-", "authorization-")]
        return [*flags, "--bind-address=127.0.0.1"]

    def _healthy(self, port: int) -> bool:
        return self._curl(f"https://127.0.0.1:{port}/healthz") == "ok"

    def _default_account(self) -> bool:
        pki = self._instance.certificates
        url = f"https://{NODE_IP}:6443/api/v1/namespaces/default/serviceaccounts/default"
        return "default" in self._curl("--cert", f"{pki}/admin.crt", "--key", f"{pki}/admin.key", url)
