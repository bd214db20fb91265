"""What Pod Security Standard `restricted` has against a pod: a pure reading of its rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}


def faults(pod: Mapping[str, Any]) -> list[str]:
    """Broken rules of a PodSpec, in words; [] for a restricted one."""
    return [*_of_pod(pod), *(f for c in _containers(pod) for f in _of_container(c, pod))]


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _of_pod(pod: Mapping[str, Any]) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield name
    for volume in pod.get("volumes", ()):
        if not _VOLUMES & set(volume):
            yield f"volume {volume['name']}"
    if pod.get("securityContext", {}).get("runAsUser") == 0:
        yield "runs as root"


def _of_container(container: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    name = container["name"]
    mine, theirs = container.get("securityContext", {}), pod.get("securityContext", {})
    if mine.get("privileged"):
        yield f"{name}: privileged"
    if mine.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: privilege escalation"
    if not mine.get("runAsNonRoot", theirs.get("runAsNonRoot")):
        yield f"{name}: may be root"
    if mine.get("runAsUser") == 0:
        yield f"{name}: runs as root"
    profile = mine.get("seccompProfile", theirs.get("seccompProfile", {}))
    if profile.get("type") not in ("RuntimeDefault", "Localhost"):
        yield f"{name}: no seccomp profile"
    capabilities = mine.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()):
        yield f"{name}: capabilities kept"
    if set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities added"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield f"{name}: host port"
