"""How the shape of a model becomes known: by the spec, or by a Job that reads its config.json.

The Job's answer is kept in a ConfigMap beside a digest of the source; another source is read again. A Job
that failed is done over, each time after a pause as long as all that was tried before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from plait.contract.verdict import UnreadableError, cut, read_inspected
from plait_operator import names
from plait_operator.actions import Action, Apply, Delete
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.api.status import ConditionType
from plait_operator.children.context import Release
from plait_operator.children.inspect import (
    CONFIG,
    CONTENT,
    INSPECT,
    SOURCE,
    content_digest,
    inspect_job,
    inspected_map,
    source_digest,
)
from plait_operator.observed import Manifest, Observed, PodFact, Ref
from plait_operator.plan.clock import after, seconds_between
from plait_operator.plan.drift import stamped

SHORTEST_S: Final = 30.0
LONGEST_S: Final = 1800.0
"""Pause before a Job is done over. The Job's own ttl must be longer: it is the memory of what failed."""
_LOST_S: Final = 60.0
"""A Job that ended well, and whose pod is not there to tell the answer, is done over after this."""
_TEXT: Final = 600


class Inspection(NamedTuple):
    """`config`: fields of config.json, None while they are not known or not needed.

    `wanted`: children that must stay. `again_s`: when time alone changes something.
    """

    state: Literal["known", "running", "failed"]
    config: Mapping[str, Any] | None = None
    message: str = ""
    actions: tuple[Action, ...] = ()
    wanted: frozenset[Ref] = frozenset()
    again_s: float | None = None


def inspect(deployment: SharedKVDeployment, observed: Observed, release: Release) -> Inspection:
    """What is known of the model now, and what to do to know it."""
    model = deployment.spec.model
    if model.family is not None or model.shape is not None:
        return Inspection("known")
    kept = Ref("v1", "ConfigMap", names.short(deployment.meta.name, "model"))
    config = _config(observed.children.get(kept), source_digest(deployment.spec))
    if config is not None:
        return Inspection("known", config=config, wanted=frozenset({kept}))
    manifest = inspect_job(deployment, release)
    ref = Ref.of(manifest)
    told = _of_job(deployment, observed, manifest, ref)
    former = [
        Delete(other, live["metadata"].get("uid", ""), "it reads a former source")
        for other in sorted(one for one in observed.children if one.kind == ref.kind and one != ref)
        if not (live := observed.children[other])["metadata"].get("deletionTimestamp")
    ]
    return told._replace(actions=(*former, *told.actions), wanted=frozenset({kept, ref}))


def _config(live: Mapping[str, Any] | None, digest: str) -> Mapping[str, Any] | None:
    """What the ConfigMap keeps, if it is of this source and still what was read."""
    annotations = {} if live is None else live["metadata"].get("annotations") or {}
    if live is None or annotations.get(SOURCE) != digest:
        return None
    text = (live.get("data") or {}).get(CONFIG, "")
    if annotations.get(CONTENT) != content_digest(text):
        return None  # Somebody's hand: it is read anew, or a shape that no model has would replace all pods.
    try:
        told = json.loads(text)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _of_job(deployment: SharedKVDeployment, observed: Observed, manifest: Manifest, ref: Ref) -> Inspection:
    job = observed.children.get(ref)
    if job is None:
        return Inspection(
            "running",
            message=f"Job {ref.name} reads config.json",
            actions=(Apply(stamped(manifest), "the model's shape is not known"),),
        )
    if job["metadata"].get("deletionTimestamp"):
        return Inspection("running", message=f"Job {ref.name} is made anew")
    pods = [
        pod
        for pod in observed.pods
        if pod.role == INSPECT and pod.revision == manifest["metadata"]["labels"][names.REVISION]
    ]
    config, said = _answer(pods)
    if config is not None:
        kept = stamped(inspected_map(deployment, config))
        return Inspection("known", config=config, actions=(Apply(kept, "the model's shape was read"),))
    ended = {
        condition["type"]: condition.get("lastTransitionTime", "")
        for condition in (job.get("status") or {}).get("conditions") or ()
        if condition.get("status") == "True"
    }
    if "Failed" in ended:
        return _failed(deployment, observed, job, ref, at=ended["Failed"], said=said)
    if "Complete" in ended:
        left = _LOST_S - seconds_between(ended["Complete"], observed.now)
        message = (
            f"Job {ref.name} has ended, and its pod does not tell what it found{': ' * bool(said)}{said}"
        )
        if left > 0:
            return Inspection("running", message=message, again_s=left)
        return _over(job, ref, message)
    waits = sorted(filter(None, (pod.unschedulable or pod.waiting for pod in pods if not pod.deleting)))
    return Inspection("running", message=cut(": ".join([f"Job {ref.name}", *(waits[:1] or ["runs"])]), _TEXT))


def _answer(pods: list[PodFact]) -> tuple[Mapping[str, Any] | None, str]:
    """The config that a pod has read, or why none has."""
    said = ""
    for pod in sorted(pods, key=lambda pod: (pod.created, pod.name)):
        if not pod.terminated:
            continue
        try:
            told = read_inspected(pod.terminated)
        except UnreadableError as error:
            said = cut(str(error), _TEXT)
            continue
        if told.ok:
            return told.config, ""
        said = cut(
            "; ".join(
                f"{e.field}: {e.reason}. Fix: {e.fix}" if e.field else f"{e.reason}. Fix: {e.fix}"
                for e in told.errors
            ),
            _TEXT,
        )
    return None, said


def _failed(
    deployment: SharedKVDeployment,
    observed: Observed,
    job: Mapping[str, Any],
    ref: Ref,
    *,
    at: str,
    said: str,
) -> Inspection:
    began = next(
        (
            condition.last_transition_time
            for condition in deployment.status.conditions
            if condition.type == ConditionType.MODEL_INSPECTED and condition.status == "False"
        ),
        "",
    )
    try:
        tried = seconds_between(began, at)
    except ValueError:
        tried = 0.0  # Anybody who may write the status can put what is no time there.
    pause = min(max(tried, SHORTEST_S), LONGEST_S)
    left = pause - seconds_between(at, observed.now)
    why = said or next(
        (
            str(condition.get("message") or condition.get("reason"))
            for condition in (job.get("status") or {}).get("conditions") or ()
            if condition.get("type") == "Failed"
        ),
        "",
    )
    if left <= 0:
        return _over(job, ref, why)
    message = f"{why}. It is tried again at {after(at, pause)}, or at once when Job {ref.name} is deleted"
    return Inspection("failed", message=message, again_s=left)


def _over(job: Mapping[str, Any], ref: Ref, message: str) -> Inspection:
    """Delete the Job; that it is gone makes the next plan, which makes it anew."""
    uid = job["metadata"].get("uid", "")
    return Inspection("failed", message=message, actions=(Delete(ref, uid, "it is done over"),))
