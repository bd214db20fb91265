"""The API server over HTTP: one connection, plain JSON, no model in between. For what a test does often."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import httpx
from tests.cluster.harness.instance import API, Instance
from tests.cluster.harness.waiting import until

Manifest = dict[str, Any]

# Kinds that tests use: how a kind is spelt in a path. Cluster-scoped ones are in the second table.
_PLURALS: Final = {
    "Endpoints": "endpoints",
    "EndpointSlice": "endpointslices",
    "Ingress": "ingresses",
    "NetworkPolicy": "networkpolicies",
    "SharedKVDeployment": "sharedkvdeployments",
    "SharedKVRole": "sharedkvroles",
    "PriorityClass": "priorityclasses",
    "StorageClass": "storageclasses",
}
_CLUSTER: Final = {
    "Namespace",
    "Node",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "PriorityClass",
    "StorageClass",
    "PersistentVolume",
    "APIService",
}
# How long a new kind, or a new API server, may take to read what is stored. Asked again for as long.
_INITIALIZING_S: Final = 20.0
PLAIT: Final = "plait.dev/v1alpha1"


class RefusedError(RuntimeError):
    """The API server said no: HTTP `code`, `reason` and `message` of its Status."""

    def __init__(self, code: int, status: Mapping[str, Any], request: str) -> None:
        self.code = code
        self.reason = str(status.get("reason", ""))
        self.message = str(status.get("message", ""))
        self.causes: list[Mapping[str, Any]] = (status.get("details") or {}).get("causes") or []
        super().__init__(f"{request}: {code} {self.reason}: {self.message}")


class Api:
    """Objects by (api version, kind, name). Only from inside the network namespace: fixtures see to that."""

    def __init__(self, instance: Instance, *, token: str = "", user: str = "admin") -> None:
        pki = instance.certificates
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        if not token:
            context.load_cert_chain(pki / f"{user}.crt", pki / f"{user}.key")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            base_url=API, verify=context, headers=headers, timeout=30.0, trust_env=False
        )

    def close(self) -> None:
        self._http.close()

    def raw(self, method: str, path: str, body: Any = None, *, content: str = "", **query: str) -> Any:
        """The answer's JSON, text where it is none. `content`: the body's type. RefusedError from 400 on."""
        kind = content or "application/json"
        sent = None if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + _INITIALIZING_S
        while True:
            answer = self._http.request(
                method, path, content=sent, headers={"Content-Type": kind}, params=query
            )
            if answer.status_code != 429 or b"(re)initializing" not in answer.content:
                break
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        told = answer.json() if "json" in answer.headers.get("content-type", "") else answer.text
        if answer.is_error:
            raise RefusedError(
                answer.status_code, told if isinstance(told, dict) else {"message": told}, f"{method} {path}"
            )
        return told

    def get(self, version: str, kind: str, name: str, namespace: str = "") -> Manifest | None:
        """The object, None where there is none."""
        try:
            return self.raw("GET", path(version, kind, namespace, name))  # type: ignore[no-any-return]
        except RefusedError as refused:
            if refused.code == 404:
                return None
            raise

    def list(self, version: str, kind: str, namespace: str = "", *, selector: str = "") -> list[Manifest]:
        """All objects of a kind, in `namespace` or everywhere. `selector`: of labels."""
        query = {"labelSelector": selector} if selector else {}
        return self.raw("GET", path(version, kind, namespace), **query)["items"]  # type: ignore[no-any-return]

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        query = {"dryRun": "All"} if dry_run else {}
        return self.raw("POST", _of(manifest, collection=True), manifest, **query)  # type: ignore[no-any-return]

    def replace(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        tail = f"/{subresource}" if subresource else ""
        return self.raw("PUT", _of(manifest) + tail, manifest)  # type: ignore[no-any-return]

    def apply(
        self, manifest: Manifest, *, manager: str = "tests", force: bool = True, subresource: str = ""
    ) -> Manifest:
        """Server-side apply."""
        tail = f"/{subresource}" if subresource else ""
        query = {"fieldManager": manager, "force": str(force).lower()}
        kind = "application/apply-patch+yaml"
        return self.raw("PATCH", _of(manifest) + tail, manifest, content=kind, **query)  # type: ignore[no-any-return]

    def patch(
        self, version: str, kind: str, name: str, namespace: str, patch: Any, *, subresource: str = ""
    ) -> Manifest:
        """Merge patch (a mapping) or JSON patch (a list)."""
        content = "application/json-patch+json" if isinstance(patch, list) else "application/merge-patch+json"
        tail = f"/{subresource}" if subresource else ""
        where = path(version, kind, namespace, name) + tail
        return self.raw("PATCH", where, patch, content=content)  # type: ignore[no-any-return]

    def delete(
        self, version: str, kind: str, name: str, namespace: str = "", *, grace: int | None = None
    ) -> None:
        """Delete, what it owns in the background. Gone already is fine. `grace` in seconds."""
        body: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            self.raw("DELETE", path(version, kind, namespace, name), body)
        except RefusedError as refused:
            if refused.code != 404:
                raise

    def establish(self, *definitions: Manifest) -> None:
        """Apply CustomResourceDefinitions, and wait until their kinds are served."""
        for definition in definitions:
            self.apply(definition)
        for definition in definitions:
            name = definition["metadata"]["name"]
            self.until(
                definition["apiVersion"],
                definition["kind"],
                name,
                "",
                lambda crd: any(
                    c["type"] == "Established" and c["status"] == "True"
                    for c in crd.get("status", {}).get("conditions", [])
                ),
                what=f"CRD {name} established",
            )

    def watch(
        self,
        version: str,
        kind: str,
        namespace: str = "",
        *,
        seconds: int,
        since: str = "",
        selector: str = "",
    ) -> Iterator[tuple[str, Manifest]]:
        """(ADDED | MODIFIED | DELETED | BOOKMARK | ERROR, object) until `seconds` are over."""
        query = {"watch": "true", "timeoutSeconds": str(seconds)}
        query |= {"resourceVersion": since} if since else {}
        query |= {"labelSelector": selector} if selector else {}
        where = path(version, kind, namespace)
        with self._http.stream("GET", where, params=query, timeout=seconds + 10.0) as answer:
            for line in answer.iter_lines():
                event = json.loads(line)
                yield event["type"], event["object"]

    def until(
        self,
        version: str,
        kind: str,
        name: str,
        namespace: str,
        holds: Callable[[Manifest], object],
        *,
        what: str,
        seconds: float = 60.0,
    ) -> Manifest:
        """The object once `holds`; ClusterError with what it last was otherwise."""
        last: list[Manifest | None] = [None]

        def look() -> Manifest | None:
            last[0] = self.get(version, kind, name, namespace)
            return last[0] if last[0] is not None and holds(last[0]) else None

        def told() -> str:
            seen = last[0]
            return f"{kind} {name}: " + (json.dumps(seen.get("status"))[:3000] if seen else "not there")

        return until(look, what, seconds=seconds, why_not=told)

    def until_gone(
        self, version: str, kind: str, name: str, namespace: str = "", *, seconds: float = 60.0
    ) -> None:
        """Wait until there is no such object."""
        gone = f"{kind} {name} gone"
        until(lambda: self.get(version, kind, name, namespace) is None, gone, seconds=seconds)

    def token(self, account: str, namespace: str) -> str:
        """A token of a ServiceAccount, for an hour."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        where = path("v1", "ServiceAccount", namespace, account) + "/token"
        return str(self.raw("POST", where, body)["status"]["token"])


def path(version: str, kind: str, namespace: str = "", name: str = "") -> str:
    """The path of a kind's collection, or of one object."""
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    middle = f"/namespaces/{namespace}" if namespace and kind not in _CLUSTER else ""
    return f"{root}{middle}/{plural}" + (f"/{name}" if name else "")


def _of(manifest: Manifest, *, collection: bool = False) -> str:
    meta = manifest["metadata"]
    name = "" if collection else meta["name"]
    return path(manifest["apiVersion"], manifest["kind"], meta.get("namespace", ""), name)
