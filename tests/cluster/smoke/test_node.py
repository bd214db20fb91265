"""The real node runs pods: images, probes, logs, exec, Services, names, and webhooks in pods."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.cluster.harness.api import Api, Manifest, RefusedError
from tests.cluster.harness.certificates import SERVER, Authority, pem
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.images import write_image
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.python_image import interpreter
from tests.cluster.harness.waiting import until

IMAGE = "localhost/plait-smoke-python:1"

SERVE = """\
import http.server, os, pathlib
folder = pathlib.Path('/tmp/www'); folder.mkdir()
(folder / 'host').write_text(os.environ['HOSTNAME'])
os.chdir(folder)
print('serves as', os.getuid(), flush=True)
http.server.ThreadingHTTPServer(('', 8080), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
# Refuses all it is asked, so that a test sees that it was asked.
REFUSE = """\
import http.server, json, ssl
class Webhook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        uid = review['request']['uid']
        answer = {'uid': uid, 'allowed': False, 'status': {'message': 'refused by a pod'}}
        body = json.dumps({**review, 'request': None, 'response': answer}).encode()
        self.send_response(200); self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
server = http.server.ThreadingHTTPServer(('', 8443), Webhook)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain('/tls/tls.crt', '/tls/tls.key')
server.socket = context.wrap_socket(server.socket, server_side=True); server.serve_forever()
"""
ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"


def container(code: str, **more: Any) -> Manifest:
    """One that the strictest level of PodSecurity lets in."""
    security = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    made = {
        "name": "c",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": ["-c", code],
        "securityContext": security,
    }
    return made | more


def pod(namespace: str, name: str, inside: Manifest, **more: Any) -> Manifest:
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, *inside.get("volumeMounts", [])]
    spec = {
        "terminationGracePeriodSeconds": 1,
        "containers": [{**inside, "volumeMounts": mounts}],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *more.pop("volumes", [])],
    }
    meta = {"name": name, "namespace": namespace, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec | more}


def service(namespace: str, name: str, app: str, port: int, target: int) -> Manifest:
    spec = {"selector": {"app": app}, "ports": [{"port": port, "targetPort": target}]}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def is_ready(seen: Manifest) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in seen["status"].get("conditions", []))


@pytest.fixture(scope="module")
def image(node: Cluster) -> str:
    """Python and nothing else, on the node."""
    archive = node.instance.run / "images" / "smoke-python.tar"
    write_image(archive, IMAGE, interpreter(), entrypoint=["/usr/local/bin/python3"], user="65532:65532")
    assert node.start_node() is not None
    node.start_node().take(archive)
    return IMAGE


@pytest.fixture
def web(api: Api, image: str, namespace: str) -> Iterator[Manifest]:
    """A pod that serves, behind the Service `front`."""
    api.patch(
        "v1",
        "Namespace",
        namespace,
        "",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    )
    probe = {"httpGet": {"path": "/host", "port": 8080}, "periodSeconds": 1}
    env = [{"name": "HOSTNAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    api.create(pod(namespace, "web", container(SERVE, readinessProbe=probe, env=env)))
    api.create(service(namespace, "front", "web", 80, 8080))
    yield api.until("v1", "Pod", "web", namespace, is_ready, what="pod web ready")
    api.delete("v1", "Pod", "web", namespace, grace=0)


def test_a_pod_is_reached_by_every_way(web: Manifest, api: Api, kubectl: Kubectl, namespace: str) -> None:
    assert "serves as 65532" in kubectl("logs", "web", "-n", namespace)

    def inside(url: str) -> str:
        command = ["/usr/local/bin/python3", "-c", ASK, url]
        return kubectl("exec", "web", "-n", namespace, "--", *command).strip()

    address = web["status"]["podIP"]
    found = api.get("v1", "Service", "front", namespace)
    assert found is not None
    cluster_ip = found["spec"]["clusterIP"]
    # The rules of a new Service take a moment.
    until(lambda: httpx.get(f"http://{cluster_ip}/host").text == "web", "Service from the node", seconds=20)
    assert httpx.get(f"http://{address}:8080/host").text == "web"
    names = ("front", f"front.{namespace}", f"front.{namespace}.svc.cluster.local")
    for host in (f"{address}:8080", cluster_ip, *names):
        assert inside(f"http://{host}/host") == "web", host


def test_a_webhook_in_a_pod_is_reached_by_the_api_server(api: Api, image: str, namespace: str) -> None:
    authority = Authority.new("smoke")
    certificate, key = authority.issue("hook", usages=[SERVER], names=[f"hook.{namespace}.svc"])
    data = {"tls.crt": certificate.decode(), "tls.key": key.decode()}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "tls", "namespace": namespace},
        "stringData": data,
    }
    api.create(secret)
    mount = [{"name": "tls", "mountPath": "/tls"}]
    probe = {"tcpSocket": {"port": 8443}, "periodSeconds": 1}
    volumes = [{"name": "tls", "secret": {"secretName": "tls", "defaultMode": 0o444}}]
    api.create(
        pod(namespace, "hook", container(REFUSE, volumeMounts=mount, readinessProbe=probe), volumes=volumes)
    )
    api.create(service(namespace, "hook", "hook", 443, 8443))
    api.until("v1", "Pod", "hook", namespace, is_ready, what="pod hook ready")
    reference = {"name": "hook", "namespace": namespace, "path": "/validate"}
    hook = {
        "name": "hook.plait.dev",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {
            "service": reference,
            "caBundle": base64.b64encode(pem(authority.certificate)).decode(),
        },
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
        ],
    }
    kind = "ValidatingWebhookConfiguration"
    version = "admissionregistration.k8s.io/v1"
    api.apply({"apiVersion": version, "kind": kind, "metadata": {"name": "smoke-pod"}, "webhooks": [hook]})
    try:
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": namespace},
        }

        def refused() -> bool:
            # Not at once: the API server has to learn of the configuration.
            try:
                api.create(config_map, dry_run=True)
            except RefusedError as told:
                return "refused by a pod" in told.message
            return False

        until(refused, "the webhook is asked", seconds=30)
    finally:
        api.delete(version, kind, "smoke-pod")


def test_a_missing_image_is_told(api: Api, image: str, namespace: str) -> None:
    inside = container("", image="localhost/never-made:1")
    api.create(pod(namespace, "lost", inside))

    def waiting(seen: Manifest) -> bool:
        statuses = seen["status"].get("containerStatuses", [])
        return any("ErrImageNeverPull" in s["state"].get("waiting", {}).get("reason", "") for s in statuses)

    api.until("v1", "Pod", "lost", namespace, waiting, what="ErrImageNeverPull")


def test_memory_is_limited(api: Api, image: str, namespace: str) -> None:
    """So the node has a cgroup of its own that works."""
    limits = {"resources": {"limits": {"memory": "64Mi"}}}
    greedy = container("b = bytearray(200 << 20); print(len(b))", **limits)
    api.create(pod(namespace, "greedy", greedy, restartPolicy="Never"))

    def killed(seen: Manifest) -> bool:
        statuses = seen["status"].get("containerStatuses", [])
        return any(s["state"].get("terminated", {}).get("reason") == "OOMKilled" for s in statuses)

    api.until("v1", "Pod", "greedy", namespace, killed, what="OOMKilled")
