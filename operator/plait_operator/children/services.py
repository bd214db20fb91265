"""Services: the clients' address, the routers one by one, and the prefill groups' bootstrap servers."""

from __future__ import annotations

from plait_operator import names
from plait_operator.children import ports
from plait_operator.children.context import Context
from plait_operator.children.meta import meta
from plait_operator.observed import Manifest


def client_service(deployment: str) -> str:
    """Name of the Service that clients use: the deployment's own."""
    return deployment


def admin_service(deployment: str) -> str:
    """Name of the headless Service of the routers' admin ports."""
    return names.short(deployment, "router", "admin")


def bootstrap_service(deployment: str) -> str:
    """Name of the headless Service of the prefill groups."""
    return names.short(deployment, "prefill")


def services(ctx: Context) -> list[Manifest]:
    """The three Services."""
    deployment = ctx.deployment
    name, told = deployment.meta.name, deployment.spec.router
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta(
                deployment, client_service(name), role="router", annotations=told.service.annotations
            ),
            "spec": {
                "type": told.service.type,
                "selector": names.selector(name, role="router"),
                "ports": [
                    {
                        "name": "https" if told.tls else "http",
                        "port": told.service.port,
                        "targetPort": "http",
                        "protocol": "TCP",
                    }
                ],
            },
        },
        _headless(ctx, admin_service(name), role="router", port_name="admin", port=ports.ADMIN),
        _headless(ctx, bootstrap_service(name), role="prefill", port_name="bootstrap", port=ports.BOOTSTRAP),
    ]


def _headless(ctx: Context, name: str, *, role: str, port_name: str, port: int) -> Manifest:
    """Resolves to every pod of `role`, ready or not: who asks wants the pods, not any one of them.

    A prefill group answers its own ranks and decode while its gate is closed, and a router's metrics matter
    most when it is not ready.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta(ctx.deployment, name, role=role),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(ctx.deployment.meta.name, role=role),
            "ports": [{"name": port_name, "port": port, "targetPort": port_name, "protocol": "TCP"}],
        },
    }
