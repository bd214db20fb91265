"""The cluster's DNS: CoreDNS with only the plugins that it needs."""

from __future__ import annotations

from typing import Any, Final

from tests.cluster.harness.instance import DNS_SERVICE

IMAGE: Final = "localhost/coredns:1"

_COREFILE: Final = """\
.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        ttl 5
    }
    cache 5
}
"""


def manifests() -> list[dict[str, Any]]:
    """Everything of it, in the order to apply."""
    meta = {"name": "coredns", "namespace": "kube-system"}
    rbac = "rbac.authorization.k8s.io"
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": "system:coredns"}
    container = {
        "name": "coredns",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
    }
    pod = {
        "serviceAccountName": "coredns",
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
    labels = {"k8s-app": "kube-dns"}
    reads = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role["name"]},
            "rules": reads,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role["name"]},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", **meta}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"Corefile": _COREFILE}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {**meta, "name": "kube-dns"},
            "spec": {"clusterIP": DNS_SERVICE, "selector": labels, "ports": ports},
        },
    ]
