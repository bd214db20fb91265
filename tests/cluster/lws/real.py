"""LeaderWorkerSet's own controller, built from its sources by whoever runs these tests.

PLAIT_LWS names the sources, with the controller built in them: `go build -o bin/manager ./cmd`. It runs
beside the API server, as the operator under test does; its webhooks are asked at a local address.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.cluster.harness.certificates import SERVER, Authority, pem
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.failure import tail
from tests.cluster.harness.waiting import until

SOURCES: Final = os.environ.get("PLAIT_LWS", "")
_PORT: Final = 19443
_NAME: Final = "lws-controller"
_OWN_PODS: Final = {"matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]}


@pytest.fixture(scope="module")
def real_lws(plane: Cluster) -> Iterator[None]:
    """The kind, its webhooks and its controller, which leads. Gone after the module: other tests play it."""
    sources, api = Path(SOURCES), plane.api
    kinds = sorted((sources / "config/crd/bases").glob("*.yaml"))
    assert kinds, f"PLAIT_LWS = {SOURCES!r}: no config/crd/bases in it. Give the sources of LeaderWorkerSet"
    api.establish(*(yaml.safe_load(path.read_text()) for path in kinds))
    folder = plane.instance.run / "lws"
    folder.mkdir(exist_ok=True)
    authority = Authority.new("plait-test-lws")
    certificate, key = authority.issue("lws", usages=[SERVER], names=["127.0.0.1"])
    (folder / "tls.crt").write_bytes(certificate)
    (folder / "tls.key").write_bytes(key)
    (folder / "config.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "config.lws.x-k8s.io/v1alpha1",
                "kind": "Configuration",
                "leaderElection": {"leaderElect": False},
                "internalCertManagement": {"enable": False},
                "webhook": {"port": _PORT, "certDir": str(folder)},
                "health": {"healthProbeBindAddress": "127.0.0.1:19444"},
                "metrics": {"bindAddress": "127.0.0.1:19445"},
            }
        )
    )
    plane.components.start(
        _NAME,
        [str(sources / "bin/manager"), f"--config={folder / 'config.yaml'}"],
        environment={"KUBECONFIG": str(plane.instance.kubeconfig()), "ENABLE_WEBHOOKS": "true"},
    )
    log = plane.components.log(_NAME)

    def works() -> bool:
        plane.components.must_live(_NAME)
        text = log.read_text(errors="replace")
        return "Serving webhook server" in text and text.count("Starting workers") >= 2

    until(works, "LeaderWorkerSet's controller", seconds=60, why_not=lambda: tail(log))
    hooks = [
        api.apply(_here(manifest, bundle=pem(authority.certificate)))
        for manifest in yaml.safe_load_all((sources / "config/webhook/manifests.yaml").read_text())
        if manifest
    ]
    yield
    for hook in hooks:
        api.delete(hook["apiVersion"], hook["kind"], hook["metadata"]["name"])
    plane.components.stop(_NAME, seconds=10)


def _here(configuration: dict[str, Any], *, bundle: bytes) -> dict[str, Any]:
    """A webhook configuration of the sources, for a controller on this machine and for its own pods alone."""
    configuration["metadata"] = {"name": f"lws-{configuration['metadata']['name']}"}
    for hook in configuration["webhooks"]:
        path = hook["clientConfig"].pop("service")["path"]
        hook["clientConfig"] = {
            "url": f"https://127.0.0.1:{_PORT}{path}",
            "caBundle": base64.b64encode(bundle).decode(),
        }
        if "pods" in hook["rules"][0]["resources"]:
            hook["objectSelector"] = _OWN_PODS
    return configuration
