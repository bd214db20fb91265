"""Warnings: what is legal, and yet seldom meant. A warning never refuses."""

from __future__ import annotations

from collections.abc import Iterator

from plait.contract.families import FAMILIES
from plait.contract.layouts import Layout, TransferBackend
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.api.spec import SharedKVDeploymentSpec
from plait_operator.capacity import decode_weights
from plait_operator.validate.arguments import field_name
from plait_operator.validate.model import allows_longer
from plait_operator.validate.read import shape_in
from plait_operator.validate.wording import image_tag

MOST_CHARACTERS = 240
"""Longest warning: the API server cuts what is longer once there are many."""
_FAR_BELOW = 8


def warnings(new: SharedKVDeployment, old: SharedKVDeployment | None = None) -> list[str]:
    """One line per warning, `field: why, and what to do`. `old`: what `new` takes the place of, if anything.

    A line is told again on every update for as long as it holds: the one who applies may be another.
    """
    spec = new.spec
    found = [
        *_weights(spec),
        *_availability(spec),
        *_security(spec),
        *_images(spec),
        *_lengths(spec),
        *_transfer(spec),
        *_scaling(spec),
    ]
    if old is not None:
        found += _rollout(old.spec, spec)
    return [text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…" for text in found]


def _availability(spec: SharedKVDeploymentSpec) -> Iterator[str]:
    rollout = spec.rollout
    for role, replicas in (("prefill", spec.prefill.replicas), ("decode", spec.decode.replicas)):
        if 0 < replicas <= rollout.max_unavailable:
            yield (
                f"spec.rollout.maxUnavailable: {rollout.max_unavailable} lets a rollout take every {role} "
                f"pod at once ({replicas}); keep it below the replicas"
            )
        if replicas == 0 and getattr(spec.autoscaling, role) is None:
            yield f"spec.{role}.replicas: 0 means that no request can be served"
    if spec.router.replicas == 0:
        yield "spec.router.replicas: 0 means that no request can be served"
    if spec.router.replicas == 1:
        yield "spec.router.replicas: with one router, its node's loss stops all requests; use 2"
    if rollout.drain_seconds == 0:
        yield "spec.rollout.drainSeconds: 0 breaks the requests of every pod that goes"


def _security(spec: SharedKVDeploymentSpec) -> Iterator[str]:
    if spec.router.auth is None:
        yield "spec.router.auth: without keys, whoever reaches the Service may send requests"
    if spec.router.auth is not None and spec.router.tls is None:
        yield "spec.router.tls: without TLS, the clients' keys travel in clear text"
    if spec.router.tls is None and spec.router.service.type == "LoadBalancer":
        yield "spec.router.service.type: a LoadBalancer without spec.router.tls takes prompts in clear text"
    if spec.pods.host_network:
        yield (
            "spec.pods.hostNetwork: engines share their node's network: NetworkPolicies do not hold for "
            "them, and a node holds one engine of each port"
        )
    if not spec.pods.network_policies:
        yield "spec.pods.networkPolicies: without them, every pod of the cluster reaches the engines"
    if spec.model.source.host_path is not None:
        yield (
            "spec.model.source.hostPath: every engine node must hold the same files; Pod Security `baseline` "
            "refuses such pods"
        )
    for place in ("engine", "prefill", "decode"):
        args = getattr(spec, place).args
        if any(field_name(key) == "trust_remote_code" and value for key, value in args.items()):
            yield f"spec.{place}.args.trust_remote_code: code of the model's repository runs in the engines"


def _images(spec: SharedKVDeploymentSpec) -> Iterator[str]:
    for place in ("engine", "runtime", "prefill", "decode", "router"):
        told: str | None = getattr(spec, place).image
        tag = image_tag(told) if told is not None else None
        if tag == "latest":
            yield f"spec.{place}.image: the tag latest changes under running pods; name a version or a digest"


def _lengths(spec: SharedKVDeploymentSpec) -> Iterator[str]:
    shape = shape_in(spec)
    length = spec.model.context_length
    if shape is None or length is None or not shape.max_position_embeddings:
        return
    own = shape.max_position_embeddings
    if length * _FAR_BELOW <= own:
        yield f"spec.model.contextLength: {length} is far below the model's {own}; longer requests fail"
    if length > own and allows_longer(spec):
        yield f"spec.model.contextLength: {length} is above the model's own {own}: answers may be poor there"


def _weights(spec: SharedKVDeploymentSpec) -> Iterator[str]:
    """No refusal: no field mends it as long as a decode pod has one GPU, and all the rest can be tried."""
    shape = shape_in(spec)
    told = None if shape is None else decode_weights(spec, shape)
    if told is not None and not told.fits:
        yield f"spec.decode: no decode pod will start: {told.misfit}"


def _transfer(spec: SharedKVDeploymentSpec) -> Iterator[str]:
    cuda = spec.engine.device == "cuda"
    if cuda and spec.transfer.backend == TransferBackend.MOONCAKE_TCP:
        yield "spec.transfer.backend: mooncake_tcp copies every page through host memory; mooncake uses RDMA"
    if spec.transfer.backend == TransferBackend.MOONCAKE and spec.transfer.rdma.resource is None:
        yield (
            "spec.transfer.rdma.resource: mooncake needs an RDMA device in the pods, and none is asked for; "
            "name the device plugin's resource"
        )
    if spec.cache.layout == Layout.REPLICATED:
        yield "spec.cache.layout: replicated is the reference: every rank keeps all pages"
    if cuda and spec.cache.peer_access == "off":
        yield "spec.cache.peerAccess: off makes every gather a collective, which costs more"


def _scaling(spec: SharedKVDeploymentSpec) -> Iterator[str]:
    for role in ("prefill", "decode"):
        told = getattr(spec.autoscaling, role)
        replicas = getattr(spec, role).replicas
        if told is not None and not told.min_replicas <= replicas <= told.max_replicas:
            yield (
                f"spec.{role}.replicas: {replicas} is outside of spec.autoscaling.{role}, which decides from "
                "now on"
            )


def _rollout(old: SharedKVDeploymentSpec, new: SharedKVDeploymentSpec) -> Iterator[str]:
    changed = [path for path, told in _wire(new).items() if told != _wire(old)[path]]
    if not changed or new.rollout.max_surge:
        return
    sides = {"prefill": new.prefill.replicas, "decode": new.decode.replicas}
    for role, replicas in sides.items():
        if 0 < replicas <= new.rollout.max_unavailable:
            yield (
                f"spec.rollout.maxSurge: {' and '.join(changed)} changed: old and new engines do not pair, "
                f"and with {replicas} {role} pods and no surge nothing serves in between; use 1"
            )


def _wire(spec: SharedKVDeploymentSpec) -> dict[str, object]:
    """What decides the wire contract, by path."""
    family = FAMILIES.get(spec.model.family or "")
    return {
        "spec.model": (spec.model.source, spec.model.revision, family, spec.model.shape),
        "spec.cache.dtype": spec.cache.dtype,
        "spec.transfer.backend": spec.transfer.backend,
    }
