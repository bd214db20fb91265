"""What a podTemplate may not say: the table, and the checks of what it may.

A podTemplate is merged into pods that Plait depends on. Every row names a path, why it is refused, and the
field of the manifest to use instead (where there is one).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from plait.contract.violation import Violation, nearest
from plait_operator import names
from plait_operator.validate.schema import check
from plait_operator.validate.wording import image, label, label_value, object_name, qualified

ENGINE: Final = "engine"
"""The engines' container."""
ROUTER: Final = "router"
"""The routers' container."""
OWN_INITS: Final = ("runtime", "preflight")
"""Init containers of engine pods that are Plait's."""
OWN_VOLUMES: Final[Mapping[str, tuple[str, ...]]] = {
    ENGINE: ("plait", "contract", "tmp", "state", "shm", "model"),
    ROUTER: ("tmp", "keys", "tls"),
}
"""Volumes of the pods that are Plait's, by main container."""
OWN_MOUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    ENGINE: ("/plait", "/etc/plait", "/run/plait", "/model", "/hub", "/tmp", "/dev/shm"),
    ROUTER: ("/tmp", "/etc/plait"),
}
"""Folders in the main container that are Plait's, with all below them."""


REMOVABLE: Final = (
    "affinity",
    "nodeSelector",
    "runtimeClassName",
    "securityContext",
    "tolerations",
    "topologySpreadConstraints",
)
"""Fields of a pod's spec that a podTemplate may take away with a null."""


class Refused(NamedTuple):
    """One refused path below podTemplate. `main`: only in pods of that main container (empty: in both).

    In a path, `[*]` stands for the main container.
    """

    path: str
    reason: str
    instead: str = ""
    main: str = ""


_OF_THE_ROLE = " of the role"
_COMMAND = "the command line is what the contract was checked for"
_ROUTER_COMMAND = "the router's command line is made from its section of the spec"
_POD = "pods are made by their workload, one for all replicas"

REFUSED: Final = (
    Refused("metadata.name", _POD),
    Refused("metadata.generateName", _POD),
    Refused("metadata.namespace", _POD),
    Refused("metadata.finalizers", "pods would outlive their drain"),
    Refused("metadata.ownerReferences", _POD),
    Refused("spec.restartPolicy", "engines and routers always restart"),
    Refused("spec.hostNetwork", "it concerns all pods, and their ports", "spec.pods.hostNetwork", ENGINE),
    Refused("spec.hostNetwork", "a router needs nothing of its node", "", ROUTER),
    Refused("spec.hostPID", "it opens the node's processes to the pod"),
    Refused("spec.hostIPC", "it opens the node's shared memory to the pod, which has its own"),
    Refused("spec.hostname", "addresses are given by the workload"),
    Refused("spec.hostnameOverride", "addresses are given by the workload"),
    Refused("spec.subdomain", "addresses are given by the workload"),
    Refused("spec.setHostnameAsFQDN", "addresses are given by the workload"),
    Refused("spec.nodeName", "it passes the scheduler by, and sends all replicas to one node"),
    Refused("spec.os", "the images are for Linux"),
    Refused("spec.priority", "a number may not be given", "spec.pods.priorityClassName"),
    Refused("spec.priorityClassName", "it concerns all pods", "spec.pods.priorityClassName"),
    Refused("spec.imagePullSecrets", "it concerns all pods", "spec.pods.imagePullSecrets"),
    Refused("spec.terminationGracePeriodSeconds", "requests drain first", "spec.rollout.drainSeconds"),
    Refused("spec.activeDeadlineSeconds", "the pod would be killed with its requests"),
    Refused("spec.ephemeralContainers", "only a running pod can have them"),
    Refused("spec.automountServiceAccountToken", "engines get no token of the API server", "", ENGINE),
    Refused("spec.automountServiceAccountToken", "the router finds its workers by its token", "", ROUTER),
    Refused("spec.serviceAccountName", "the router finds its workers by its own account", "", ROUTER),
    Refused("spec.serviceAccount", "it is an old name", "podTemplate.spec.serviceAccountName", ENGINE),
    Refused("spec.serviceAccount", "the router finds its workers by its own account", "", ROUTER),
    Refused("spec.enableServiceLinks", "variables of a Service named plait would be taken for settings"),
    Refused("spec.resources", "the engine's own are decided", "resources of the role"),
    Refused("spec.containers[*].command", _COMMAND, "args of the role", ENGINE),
    Refused("spec.containers[*].args", _COMMAND, "args of the role", ENGINE),
    Refused("spec.containers[*].command", _ROUTER_COMMAND, "fields of spec.router", ROUTER),
    Refused("spec.containers[*].args", _ROUTER_COMMAND, "fields of spec.router", ROUTER),
    Refused("spec.containers[*].image", "it has a field of its own", "image of the role"),
    Refused("spec.containers[*].resources", "they have a field of their own", "resources of the role"),
    Refused("spec.containers[*].env", "variables are checked where they stand", "env of the role", ENGINE),
    Refused("spec.containers[*].envFrom", "what it brings cannot be checked", "env of the role", ENGINE),
    Refused("spec.containers[*].ports", "Services, probes and discovery go by them"),
    Refused("spec.containers[*].readinessProbe", "rollouts and the router's gate go by it"),
    Refused("spec.containers[*].lifecycle", "its preStop drains the pod", "spec.rollout.drainSeconds"),
    Refused("spec.containers[*].restartPolicy", "engines and routers always restart"),
    Refused("spec.containers[*].restartPolicyRules", "engines and routers always restart"),
    Refused("spec.containers[*].workingDir", "the command is started where it can write", "", ENGINE),
)
"""Refused paths of podTemplate."""

_OWN_LABELS = (names.NAME, names.INSTANCE, names.COMPONENT, names.MANAGED_BY, "pod-template-hash")
# By annotations of its own a LeaderWorkerSet is told where its groups go: those are free.
_OWN_PREFIXES = {
    "labels": ("plait.dev/", "leaderworkerset.sigs.k8s.io/"),
    "annotations": ("plait.dev/",),
}
_SECTIONS = ("metadata", "spec")
_METADATA = ("labels", "annotations")
_CONTAINERS = ("containers", "initContainers")


def template_violations(told: Mapping[str, Any], *, path: str, main: str) -> Iterator[Violation]:
    """Violations of the podTemplate `told` for pods whose main container is `main`."""
    for key, value in told.items():
        if key not in _SECTIONS:
            close = nearest(str(key), _SECTIONS)
            fix = f"did you mean {close}?" if close else "one of metadata.labels, metadata.annotations, spec"
            yield Violation(f"{path}.{key}", value, "no part of a podTemplate", fix)
    for row in REFUSED:
        if row.main in ("", main):
            yield from _row(row, told, path=path, main=main)
    yield from _nulls(told, path=path)
    yield from _metadata(told.get("metadata"), path=f"{path}.metadata")
    spec = told.get("spec")
    if spec is None:
        return
    faults = list(check(spec, "V1PodSpec", path=f"{path}.spec", partial=True))
    yield from faults
    if not faults:
        yield from _containers(spec, path=f"{path}.spec", main=main)
        yield from _volumes(spec, path=f"{path}.spec", main=main)
        yield from _gates(spec, path=f"{path}.spec")


def _row(row: Refused, told: Mapping[str, Any], *, path: str, main: str) -> Iterator[Violation]:
    node: Any = told
    where = path
    for step in row.path.split("."):
        key = step.removesuffix("[*]")
        node = node.get(key) if isinstance(node, dict) else None
        where += f".{key}"
        if step.endswith("[*]"):
            listed = node if isinstance(node, list) else []
            number, node = next(
                ((n, c) for n, c in enumerate(listed) if isinstance(c, dict) and c.get("name") == main),
                (0, None),
            )
            where += f"[{number}]"
        if node is None:
            return
    fix = f"remove it; its place is {_instead(row, path=path)}" if row.instead else "remove it"
    yield Violation(where, node, row.reason, fix)


def _instead(row: Refused, *, path: str) -> str:
    """The place to write it instead, in full, for the podTemplate at `path`."""
    role = path.removesuffix(".podTemplate")
    if row.instead.endswith(_OF_THE_ROLE):
        return f"{role}.{row.instead.removesuffix(_OF_THE_ROLE)}"
    return f"{role}.{row.instead}" if row.instead.startswith("podTemplate.") else row.instead


def _nulls(told: Mapping[str, Any], *, path: str) -> Iterator[Violation]:
    """A null takes a field away when templates are merged: only what is not Plait's may go so."""
    spec = told.get("spec")
    if not isinstance(spec, dict):
        return
    for key in spec:
        if spec[key] is None and key not in REMOVABLE:
            reason = "a null takes away what Plait puts there"
            yield Violation(f"{path}.spec.{key}", None, reason, "leave the field out")
    for section in _CONTAINERS:
        listed = spec.get(section)
        for number, container in enumerate(listed if isinstance(listed, list) else ()):
            for key in container if isinstance(container, dict) else ():
                if container[key] is None:
                    where = f"{path}.spec.{section}[{number}].{key}"
                    reason = "a null takes away what Plait puts there"
                    yield Violation(where, None, reason, "leave the field out")


def _metadata(told: object, *, path: str) -> Iterator[Violation]:
    if told is None:
        return
    if not isinstance(told, dict):
        yield Violation(path, told, "must be a mapping", "labels, annotations")
        return
    refused = {row.path.removeprefix("metadata.") for row in REFUSED if row.path.startswith("metadata.")}
    for name, value in told.items():
        if name not in _METADATA:
            if name not in refused:
                close = nearest(str(name), _METADATA)
                fix = f"did you mean {close}?" if close else "labels, annotations"
                yield Violation(f"{path}.{name}", value, "no such field", fix)
            continue
        faults = list(check(value, "map[str]", path=f"{path}.{name}"))
        yield from faults
        for key, text in (value or {}).items() if not faults else ():
            where = f"{path}.{name}.{key}"
            if key.startswith(_OWN_PREFIXES[name]) or (name == "labels" and key in _OWN_LABELS):
                yield Violation(where, text, "selectors and the operator go by it", "another key")
            elif why := qualified(key):
                yield Violation(where, text, why, "DOMAIN/NAME, or NAME")
            elif name == "labels" and (why := label_value(text)):
                yield Violation(where, text, why, "a shorter or plainer value")


def _containers(spec: Mapping[str, Any], *, path: str, main: str) -> Iterator[Violation]:
    seen: dict[str, str] = {}
    for section in _CONTAINERS:
        for number, container in enumerate(spec.get(section) or ()):
            where, name = f"{path}.{section}[{number}]", container["name"]
            if why := label(name):
                yield Violation(f"{where}.name", name, why, "another name")
            if name in seen:
                yield Violation(f"{where}.name", name, f"{seen[name]} has this name already", "another name")
            seen.setdefault(name, where)
            own = section == "containers" and name == main
            if main == ENGINE and name in OWN_INITS:
                reason = "this container is Plait's, and what it does decides whether the engine may start"
                yield Violation(f"{where}.name", name, reason, "remove it, or give yours another name")
            elif name == main and not own:
                reason = "this is the name of the main container"
                yield Violation(f"{where}.name", name, reason, "another name")
            elif not own and not container.get("image"):
                hint = f"write {main} for the main container, or give an image"
                yield Violation(f"{where}.image", None, "is missing: a container of your own needs one", hint)
            elif container.get("image") and (why := image(container["image"])) and not own:
                yield Violation(f"{where}.image", container["image"], why, "NAME:TAG or NAME@sha256:DIGEST")


def _volumes(spec: Mapping[str, Any], *, path: str, main: str) -> Iterator[Violation]:
    own, known = OWN_VOLUMES[main], set(OWN_VOLUMES[main])
    seen: set[str] = set()
    for number, volume in enumerate(spec.get("volumes") or ()):
        where, name = f"{path}.volumes[{number}]", volume["name"]
        if name in own:
            yield Violation(f"{where}.name", name, "this volume is Plait's", "another name")
        elif why := label(name):
            yield Violation(f"{where}.name", name, why, "another name")
        elif name in seen:
            yield Violation(f"{where}.name", name, "is written twice", "keep one of the two")
        sources = [key for key, value in volume.items() if key != "name" and value is not None]
        if len(sources) > 1:
            reason = f"a volume has one source, not {' and '.join(sorted(sources))}"
            yield Violation(where, sources, reason, "keep one of them")
        claim = volume.get("persistentVolumeClaim")
        if claim is not None and (why := object_name(claim["claimName"])):
            at = f"{where}.persistentVolumeClaim.claimName"
            yield Violation(at, claim["claimName"], why, "the name of the claim")
        seen.add(name)
        known.add(name)
    for section in _CONTAINERS:
        for number, container in enumerate(spec.get(section) or ()):
            where = f"{path}.{section}[{number}].volumeMounts"
            yield from _mounts(container, known, where=where, main=main)


def _mounts(container: Mapping[str, Any], known: set[str], *, where: str, main: str) -> Iterator[Violation]:
    for number, mount in enumerate(container.get("volumeMounts") or ()):
        if mount["name"] not in known:
            close = nearest(mount["name"], known)
            fix = f"did you mean {close}?" if close else "add it to podTemplate.spec.volumes"
            yield Violation(f"{where}[{number}].name", mount["name"], "no volume has this name", fix)
        folder = "/" + mount["mountPath"].strip("/")
        if container["name"] == main and any(
            folder == own or folder.startswith(own + "/") or own.startswith(folder.rstrip("/") + "/")
            for own in OWN_MOUNTS[main]
        ):
            reason = "it would hide a folder that Plait mounts there"
            yield Violation(f"{where}[{number}].mountPath", mount["mountPath"], reason, "another folder")


def _gates(spec: Mapping[str, Any], *, path: str) -> Iterator[Violation]:
    for number, gate in enumerate(spec.get("readinessGates") or ()):
        if str(gate.get("conditionType", "")).startswith("plait.dev/"):
            where = f"{path}.readinessGates[{number}].conditionType"
            yield Violation(where, gate["conditionType"], "this gate is the operator's", "remove it")
