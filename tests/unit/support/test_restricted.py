"""Each rule of Pod Security `restricted`, broken one at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.restricted import faults

GOOD: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "c",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
    "volumes": [{"name": "v", "emptyDir": {}}],
}


def test_a_good_pod_has_no_fault():
    assert faults(GOOD) == []


def own(pod: dict[str, Any]) -> dict[str, Any]:
    return pod["containers"][0]["securityContext"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("breaks", "fault"),
    [
        (lambda p: p.update(hostNetwork=True), "hostNetwork"),
        (lambda p: p.update(hostPID=True), "hostPID"),
        (lambda p: p["volumes"].append({"name": "h", "hostPath": {"path": "/"}}), "volume h"),
        (lambda p: p["securityContext"].update(runAsUser=0), "runs as root"),
        (lambda p: p["securityContext"].pop("runAsNonRoot"), "c: may be root"),
        (lambda p: p["securityContext"].pop("seccompProfile"), "c: no seccomp profile"),
        (lambda p: own(p).update(privileged=True), "c: privileged"),
        (lambda p: own(p).pop("allowPrivilegeEscalation"), "c: privilege escalation"),
        (lambda p: own(p).update(capabilities={}), "c: capabilities kept"),
        (lambda p: own(p)["capabilities"].update(add=["IPC_LOCK"]), "c: capabilities added"),
        (lambda p: own(p).update(runAsUser=0), "c: runs as root"),
        (lambda p: own(p).update(runAsNonRoot=False), "c: may be root"),
        (lambda p: p["containers"][0].update(ports=[{"containerPort": 1, "hostPort": 1}]), "c: host port"),
        (lambda p: p.update(initContainers=[{"name": "i"}]), "i: privilege escalation"),
    ],
)
def test_one_fault(breaks: Callable[[dict[str, Any]], object], fault: str):
    pod = copy.deepcopy(GOOD)
    breaks(pod)
    assert fault in faults(pod)
