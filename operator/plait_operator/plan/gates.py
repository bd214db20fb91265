"""The readiness gate of engine pods: open once a quorum of routers has the pod, closed when it drops it.

Until then clients of the engine's Service, and a rollout that counts ready pods, would believe in a pod that
no request can reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from plait_operator.actions import SetGate
from plait_operator.observed import Observed, PodFact, RouterFact

STALE_S: Final = 30.0
"""Age in seconds from which a router's answer says nothing any more."""
_ENGINES: Final = ("prefill", "decode")


def gates(observed: Observed) -> list[SetGate]:
    """The gates that must change, by pod name.

    A gate opens once more than half of the ready routers that answered, and at least one, have taken the pod
    in; it closes when more than half of them say that they have not. At a tie it stays as it is, and so it
    does while no ready router answers: what one cannot ask about is no reason to take a serving pod out of
    service. For the same reason a router that knows no engine at all (it has just started) is no voice for
    closing. Pods on their way out are left alone, and so are a group's pods beside its leader: they have no
    gate.
    """
    answers = [router for router in observed.routers if _counts(router)]
    if not answers:
        return []
    pods = sorted(pod for pod in observed.pods if pod.role in _ENGINES and not (pod.deleting or pod.worker))
    return [change for pod in pods if (change := _change(pod, answers)) is not None]


def _counts(router: RouterFact) -> bool:
    return router.ready and not router.error and router.age_s <= STALE_S


def _change(pod: PodFact, answers: Sequence[RouterFact]) -> SetGate | None:
    yes = sum(1 for router in answers if _has(router, pod))
    no = sum(1 for router in answers if router.engines and not _has(router, pod))
    if 2 * yes > len(answers) and pod.admitted is not True:
        return SetGate(pod.name, pod.uid, True, f"{yes} of {len(answers)} routers have taken it in")
    if 2 * no > len(answers) and pod.admitted is True:
        why = _why(pod, answers) or f"{no} of {len(answers)} routers have not taken it in"
        return SetGate(pod.name, pod.uid, False, why)
    return None


def _has(router: RouterFact, pod: PodFact) -> bool:
    return any(engine.taken_in for engine in router.engines if _is(engine.identity, pod))


def _why(pod: PodFact, answers: Sequence[RouterFact]) -> str:
    said = {
        engine.trouble
        for router in answers
        for engine in router.engines
        if _is(engine.identity, pod) and not engine.taken_in and engine.trouble
    }
    return "; ".join(sorted(said))


def _is(identity: str, pod: PodFact) -> bool:
    return identity.startswith(f"{pod.uid}/")
