"""Every reason that a condition can give, with what it means: the documentation is made from this."""

from __future__ import annotations

from enum import StrEnum

from plait_operator.api.status import ConditionType

MEANING: dict[ConditionType, str] = {
    ConditionType.MODEL_INSPECTED: "The model's shape is known: from its family, the spec, or config.json.",
    ConditionType.ADMITTED: "The spec fits the contract. False: the message lists every violation.",
    ConditionType.PREFILL_READY: "As many prefill groups of the newest revision are ready as are wanted.",
    ConditionType.DECODE_READY: "As many decode pods of the newest revision are ready as are wanted.",
    ConditionType.TRANSFER_READY: "Engine pods passed preflight: devices, peer mapping, versions, hooks.",
    ConditionType.ROUTER_READY: "As many router pods are ready as are wanted.",
    ConditionType.AVAILABLE: "Requests can be served. Pods of an older revision count: they serve, too.",
    ConditionType.PROGRESSING: "Something is being brought about. False: all is done, or it cannot go on.",
    ConditionType.DEGRADED: "Something is wrong that does not end by itself.",
}
"""What each condition says when it is True, in the order in which they come true."""


class Reason(StrEnum):
    """`about`: what it means and what to do, in one sentence. `lasting`: it does not end by itself."""

    about: str
    lasting: bool

    def __new__(cls, value: str, about: str, lasting: bool = False) -> Reason:
        """A text with two facts beside it."""
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.about = about
        reason.lasting = lasting
        return reason

    # The model and the spec.
    KNOWN = "Known", "The model's shape is known."
    INSPECTING = "Inspecting", "A Job reads the model's config.json."
    INSPECT_FAILED = "InspectFailed", "The model's config.json could not be read, or is not one.", True
    VALID = "Valid", "The spec fits the contract."
    INVALID = "Invalid", "The spec breaks rules; children stay as they were until it is mended.", True
    NOT_CHECKED = "NotChecked", "The rest of the contract can be checked once the model's shape is known."

    # One role.
    READY = "Ready", "As many pods of the newest revision are ready as are wanted."
    SCALED_TO_ZERO = "ScaledToZero", "The role has 0 replicas."
    NOT_PLANNED = "NotPlanned", "There is no revision to bring about yet: see ModelInspected and Admitted."
    CREATING = "Creating", "Pods are being made."
    NOT_READY = "NotReady", "Pods are there and not ready yet, and tell of no trouble."
    WAITING_FOR_ROUTERS = (
        "WaitingForRouters",
        "The engine is up; no quorum of routers has it yet.",
    )
    UNSCHEDULABLE = "Unschedulable", "No node has room for a pod, or none matches what it asks for."
    RESTARTING = "Restarting", "A container ended and is started again."
    CRASH_LOOPING = "CrashLooping", "A container ends again and again.", True
    IMAGE_PULL_FAILED = "ImagePullFailed", "An image cannot be pulled.", True
    CONTAINER_REFUSED = "ContainerRefused", "A container cannot be made as it is asked for.", True
    PREFLIGHT_FAILED = "PreflightFailed", "A check before the engine's start said no.", True
    PODS_REFUSED = "PodsRefused", "The cluster refuses to make pods: a quota, or a policy.", True
    REFUSED = "Refused", "The API server refuses an object of this deployment.", True

    # Transfer.
    PREFLIGHT_PASSED = "PreflightPassed", "Every engine pod of the newest revision passed its preflight."
    PREFLIGHT_RUNNING = "PreflightRunning", "Not every engine pod has a verdict of its preflight yet."

    # The whole.
    SERVING = "Serving", "A router is ready, and a pair of prefill and decode serves."
    NO_ROUTER = "NoRouter", "No router is ready."
    NO_PREFILL = "NoPrefill", "No prefill group is ready."
    NO_DECODE = "NoDecode", "No decode pod is ready."
    NO_PAIR = "NoPair", "Prefill and decode are ready, and no two of them have the same wire hash."
    COMPLETE = "Complete", "All is as the spec asks."
    ROLLING_OUT = "RollingOut", "Pods of an older revision are being replaced."
    SCALING = "Scaling", "Pods are being added or taken away."
    STARTING = "Starting", "Pods are on their way to be ready."
    STUCK = "Stuck", "A rollout cannot go on; the message names the field and the fix.", True
    CAPACITY_MISMATCH = (
        "CapacityMismatch",
        "Engines report another capacity than the sizes of model and GPU lead to expect.",
        True,
    )
    REMOVING = "Removing", "The deployment is being removed: routers first, engines once they are drained."
    HEALTHY = "Healthy", "Nothing is wrong that does not end by itself."
