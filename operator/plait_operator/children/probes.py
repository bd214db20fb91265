"""When an engine counts as started, ready, alive and gone."""

from __future__ import annotations

from typing import Final

from plait_operator.observed import Manifest

_LEAVE_S: Final = 5
_MARGIN_S: Final = 30
"""For the engine's own end after its last request, beside the time to drain."""


def probes() -> Manifest:
    """The three probes. The engine answers /health with 200 as soon as it serves, without a forward."""
    ask = {"path": "/health", "port": "http", "scheme": "HTTP"}
    return {
        # An hour: hundreds of GB may come over a network, and kernels are compiled. Until then nothing
        # listens at all.
        "startupProbe": {"httpGet": ask, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 360},
        "readinessProbe": {"httpGet": ask, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        # Slow to judge: the server shares its cores with tokenizers, and the engine has a watchdog of its own
        # that ends it when a forward hangs. This is for a server that does not answer any more.
        "livenessProbe": {"httpGet": ask, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 12},
    }


def lifecycle(drain_seconds: int, *, url: str = "") -> Manifest:
    """preStop: stay until requests have ended. `url`: of another engine whose end is waited for."""
    command = ["python3", "-m", "plait.pod.drain"]
    command += ["--leave-s", str(_LEAVE_S), "--deadline-s", str(drain_seconds)]
    # What a preStop prints is thrown away: it goes into the engine's own log.
    command += ["--log", "/proc/1/fd/1"]
    if url:
        # Only a shell fills in the address: the kubelet does so for `command` of a container, not for hooks.
        command = ["/bin/sh", "-c", " ".join(["exec", *command, "--url", url])]
    return {"preStop": {"exec": {"command": command}}}


def grace(drain_seconds: int) -> int:
    """terminationGracePeriodSeconds: what preStop may take, and the engine's own end."""
    return _LEAVE_S + drain_seconds + _MARGIN_S
