"""Objects as compressed JSON, and a deployment's children taken out of it one by one.

A thousand deployments have some twenty thousand children. As Python objects they would take about 400 MB, as
compressed JSON some 15 MB. A look reads few of them: most have not changed since it last did.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Final

import orjson

from plait_operator.observed import Manifest, Ref

_DROPPED_META: Final = ("managedFields", "selfLink")


def pack(thing: Manifest) -> bytes:
    """Without what nobody reads."""
    meta = {name: value for name, value in thing["metadata"].items() if name not in _DROPPED_META}
    data = zlib.compressobj(level=6, zdict=_TYPICAL)
    return data.compress(orjson.dumps({**thing, "metadata": meta})) + data.flush()


def unpack(packed: bytes) -> Manifest:
    """A new object each time."""
    data = zlib.decompressobj(zdict=_TYPICAL)
    thing: Manifest = orjson.loads(data.decompress(packed) + data.flush())
    return thing


class Children(Mapping[Ref, Manifest]):
    """Objects that are unpacked when they are asked for, once. In the order of `packed`. Not thread safe."""

    def __init__(self, packed: Mapping[Ref, bytes]) -> None:
        self._packed = packed
        self._out: dict[Ref, Manifest] = {}

    def packed(self, ref: Ref) -> bytes | None:
        """As it is held; None: there is no such child."""
        return self._packed.get(ref)

    def __getitem__(self, ref: Ref) -> Manifest:
        found = self._out.get(ref)
        if found is None:
            found = self._out[ref] = unpack(self._packed[ref])
        return found

    def __contains__(self, ref: object) -> bool:
        return ref in self._packed

    def __iter__(self) -> Iterator[Ref]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


# What nearly every child says: small objects have little to compress in themselves.
_TYPICAL: Final = (
    b'"lastTransitionTime":"2026-01-01T00:00:00Z","observedGeneration":1,"status":"True","status":"False",'
    b'"protocol":"TCP","terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File",'
    b'"imagePullPolicy":"IfNotPresent","securityContext":{"allowPrivilegeEscalation":false,"capabilities":'
    b'{"drop":["ALL"]},"readOnlyRootFilesystem":true,"runAsNonRoot":true,"seccompProfile":{"type":'
    b'"RuntimeDefault"}},"volumeMounts":[{"mountPath":"/plait","name":"plait"}],"resources":{"limits":{},'
    b'"requests":{}},"restartPolicy":"Always","dnsPolicy":"ClusterFirst","schedulerName":"default-scheduler",'
    b'"selector":{"matchLabels":{"app.kubernetes.io/component":"prefill","app.kubernetes.io/instance":"",'
    b'"app.kubernetes.io/managed-by":"plait-operator","app.kubernetes.io/name":"plait","plait.dev/revision":"",'
    b'"plait.dev/role":"decode"}},"ownerReferences":[{"apiVersion":"plait.dev/v1alpha1","blockOwnerDeletion":'
    b'true,"controller":true,"kind":"SharedKVDeployment","name":"","uid":""}],"resourceVersion":"","uid":"",'
    b'"annotations":{"plait.dev/applied":""},"labels":{"app.kubernetes.io/component":"router",'
    b'"app.kubernetes.io/instance":"","app.kubernetes.io/managed-by":"plait-operator",'
    b'"app.kubernetes.io/name":"plait","plait.dev/role":"router"},"creationTimestamp":"2026-01-01T00:00:00Z",'
    b'{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"","namespace":"","generation":1'
)
