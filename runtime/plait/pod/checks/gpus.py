"""How many GPUs does the container see, and can they map each other's memory?

Torch is asked, in a process of its own: it is what the engine will ask, and a driver that hangs must not
take the preflight along.
"""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

from plait.contract.verdict import CheckResult
from plait.pod.asked import Asked
from plait.pod.checks.result import bad, good, skipped
from plait.pod.deadline import run

NAME, PEERS = "gpus", "peers"
_MARK = "plait-gpus:"
_CODE = f"""
import json, torch
n = torch.cuda.device_count()
names = [torch.cuda.get_device_name(i) for i in range(n)]
apart = [[a, b] for a in range(n) for b in range(n) if a != b and not torch.cuda.can_device_access_peer(a, b)]
print({_MARK!r} + json.dumps([n, names, apart]), flush=True)
"""


class Gpus(NamedTuple):
    """What torch sees. `apart`: pairs of which the first cannot map the second's memory."""

    number: int
    names: list[str]
    apart: list[list[int]]


def check(asked: Asked) -> list[CheckResult]:
    """Two results: the count, and peer access."""
    if asked.cpu:
        return [skipped(NAME, "the engine runs on the CPU"), skipped(PEERS, "the engine runs on the CPU")]
    ended = run([sys.executable, "-c", _CODE], environ=asked.environ, deadline=asked.deadline)
    line = next((each for each in ended.out.splitlines() if each.startswith(_MARK)), None)
    if ended.status != 0 or line is None:
        said = ended.errors.strip().splitlines()
        reason = said[-1] if said else "torch did not answer in time"
        fix = "see that the node's driver works (nvidia-smi) and that the container was given its GPUs"
        return [bad(NAME, "no answer", reason=reason, fix=fix), skipped(PEERS, "torch sees no GPU")]
    gpus = Gpus(*json.loads(line.removeprefix(_MARK)))
    return [judge_count(gpus, wanted=asked.gpus), judge_peers(gpus, access=asked.peer_access)]


def judge_count(gpus: Gpus, *, wanted: int) -> CheckResult:
    """As many as the engine has ranks here, no more: a rank must not land on another pod's GPU."""
    kinds = ", ".join(sorted(set(gpus.names)))
    value = f"{gpus.number} ({kinds})" if kinds else str(gpus.number)
    if gpus.number == wanted:
        return good(NAME, value)
    reason = f"the engine has {wanted} ranks on this node and needs as many GPUs"
    fix = "set the limit nvidia.com/gpu of the preflight and engine containers to the ranks"
    return bad(NAME, value, reason=reason, fix=fix)


def judge_peers(gpus: Gpus, *, access: str) -> CheckResult:
    """Every pair, where it is required."""
    pairs = gpus.number * (gpus.number - 1)
    if access == "off":
        return skipped(PEERS, "cache.peerAccess is off")
    if gpus.number < 2:
        return skipped(PEERS, "there is no pair of GPUs")
    value = f"{pairs - len(gpus.apart)} of {pairs} pairs"
    if not gpus.apart:
        return good(PEERS, value)
    named = ", ".join(f"{a}->{b}" for a, b in gpus.apart[:8]) + (", …" if len(gpus.apart) > 8 else "")
    reason = f"cannot map the other's memory: {named}"
    if access == "auto":
        return skipped(PEERS, f"not required (cache.peerAccess is auto), but {reason}", value=value)
    fix = "use a node whose GPUs are joined by NVLink or a PCIe switch, or cache.peerAccess: auto"
    return bad(PEERS, value, reason=reason, fix=fix)
