"""Operators and admission servers of the checkout for one test, each with ports and a log of its own."""

from __future__ import annotations

import base64
import itertools
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.cluster.harness.api import Manifest
from tests.cluster.harness.certificates import SERVER, Authority, pem
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.failure import tail
from tests.cluster.harness.processes import Process, account_kubeconfig

# Below the range that outgoing connections take theirs from.
_PORTS: Final = itertools.count(20000)
CONFIGURATION: Final = "plait-tests"


class Operators:
    """Makes them; `end` ends all that it has made."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self.namespace = namespace
        self._made: list[Process] = []
        self._configured = False

    def operator(
        self,
        *flags: str,
        name: str = "operator",
        account: str = "",
        everywhere: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """`plait_operator run`, not started. Several in one test share a Lease; give each a `name`.

        `account`: `namespace:name` of the ServiceAccount whose rights it has (default: admin's).
        `everywhere`: it watches all namespaces, not the test's alone.
        """
        port = next(_PORTS)
        words = [
            "run",
            f"--namespace={self.namespace}",
            f"--health-port={port}",
            f"--lease-name={CONFIGURATION}",
        ]
        if not everywhere:
            words.append(f"--watch-namespace={self.namespace}")
        kubeconfig = self._cluster.instance.kubeconfig()
        if account:
            where, who = account.split(":")
            token = self._cluster.api.token(who, where)
            kubeconfig = account_kubeconfig(self._cluster.instance, f"{where}-{who}", token)
        process = Process(
            self._cluster.instance,
            f"{self.namespace}-{name}",
            [*words, f"--kubeconfig={kubeconfig}", *flags],
            kubeconfig=kubeconfig,
            ready_url=f"http://127.0.0.1:{port}/readyz",
            environment=environment,
        )
        self._made.append(process)
        return process

    def admission(self, *flags: str, register: bool = True) -> Process:
        """`plait_operator admission`, started, over TLS with a certificate of its own.

        `register`: both webhooks ask it about SharedKVDeployments of this test's namespace.
        """
        folder = self._cluster.instance.run / "admission" / self.namespace
        folder.mkdir(parents=True, exist_ok=True)
        authority = Authority.new("plait-test-admission")
        certificate, key = authority.issue("admission", usages=[SERVER], names=["127.0.0.1", "localhost"])
        (folder / "tls.crt").write_bytes(certificate)
        (folder / "tls.key").write_bytes(key)
        port, health = next(_PORTS), next(_PORTS)
        words = ["admission", f"--port={port}", f"--health-port={health}", f"--certificates={folder}"]
        process = Process(
            self._cluster.instance,
            f"{self.namespace}-admission",
            [*words, *flags],
            kubeconfig=Path("/nonexistent"),
            ready_url=f"http://127.0.0.1:{health}/readyz",
        )
        self._made.append(process)
        process.start()
        if register:
            self._configured = True
            for manifest in webhooks(self.namespace, port=port, bundle=pem(authority.certificate)):
                self._cluster.api.apply(manifest)
        return process

    def end(self, *, tell: bool) -> None:
        """End all. `tell`: the end of each log to standard error."""
        if self._configured:
            for kind in ("Mutating", "Validating"):
                name = f"{CONFIGURATION}-{self.namespace}"
                self._cluster.api.delete(
                    "admissionregistration.k8s.io/v1", f"{kind}WebhookConfiguration", name
                )
        for process in self._made:
            process.kill()
            if tell and process.log.exists():
                print(f"\n--- {process.log}\n{tail(process.log, lines=60)}", file=sys.stderr)
        shutil.rmtree(self._cluster.instance.run / "admission" / self.namespace, ignore_errors=True)


def webhooks(namespace: str, *, port: int, bundle: bytes) -> list[Manifest]:
    """Both configurations for a server on this machine, with the rules of the chart's."""
    made: list[Manifest] = []
    for kind, path in (("Mutating", "mutate"), ("Validating", "validate")):
        hook: dict[str, Any] = {
            "name": f"{path}.plait.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "timeoutSeconds": 10,
            "clientConfig": {
                "url": f"https://127.0.0.1:{port}/{path}",
                "caBundle": base64.b64encode(bundle).decode(),
            },
            "rules": [
                {
                    "apiGroups": ["plait.dev"],
                    "apiVersions": ["v1alpha1"],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": ["sharedkvdeployments", "sharedkvroles"],
                    "scope": "Namespaced",
                }
            ],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "matchConditions": [
                {"name": "not-on-its-way-out", "expression": "!has(object.metadata.deletionTimestamp)"}
            ],
        }
        made.append(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": f"{kind}WebhookConfiguration",
                "metadata": {"name": f"{CONFIGURATION}-{namespace}"},
                "webhooks": [hook],
            }
        )
    return made
