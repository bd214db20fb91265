from typing import Any

import pytest
from tests.cluster.admission.matrix import manifest

from plait_operator.api.resource import SharedKVDeployment
from plait_operator.capacity import GPU_LABEL
from plait_operator.validate import warnings
from plait_operator.validate.advice import MOST_CHARACTERS

QUIET: dict[str, Any] = {
    # A GPU of a size that nobody knows: nothing is said of weights on it.
    "spec/decode/podTemplate": {"spec": {"nodeSelector": {GPU_LABEL: "another"}}},
    "spec/router/auth": {"secretRef": {"name": "keys"}},
    "spec/router/tls": {"secretRef": {"name": "tls"}},
}
ON_H200: dict[str, Any] = {"spec/decode/podTemplate": None}


def deployment(change: dict[str, Any], *, cpu: bool = False) -> SharedKVDeployment:
    return SharedKVDeployment.of(manifest({**QUIET, **change}, cpu=cpu))


def told(change: dict[str, Any], old: dict[str, Any] | None = None, *, cpu: bool = False) -> list[str]:
    before = None if old is None else deployment(old, cpu=cpu)
    return warnings(deployment(change, cpu=cpu), before)


def test_what_is_wise_is_passed_over_in_silence() -> None:
    assert told({}) == []
    assert told({"spec/model/contextLength": 131072}) == []


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"spec/router/auth": None}, ["spec.router.auth"]),
        ({"spec/router/tls": None}, ["spec.router.tls"]),
        (
            {"spec/router/tls": None, "spec/router/service": {"type": "LoadBalancer"}},
            ["spec.router.tls", "spec.router.service.type"],
        ),
        ({"spec/router/replicas": 1}, ["spec.router.replicas"]),
        ({"spec/router/replicas": 0}, ["spec.router.replicas"]),
        ({"spec/prefill/replicas": 0}, ["spec.prefill.replicas"]),
        ({"spec/rollout/maxUnavailable": 1, "spec/prefill/replicas": 2}, ["spec.rollout.maxUnavailable"]),
        ({"spec/rollout/drainSeconds": 0}, ["spec.rollout.drainSeconds"]),
        ({"spec/pods/hostNetwork": True}, ["spec.pods.hostNetwork"]),
        ({"spec/pods/networkPolicies": False}, ["spec.pods.networkPolicies"]),
        ({"spec/model/source": {"hostPath": {"path": "/m"}}}, ["spec.model.source.hostPath"]),
        ({"spec/engine/args": {"trust-remote-code": True}}, ["spec.engine.args.trust_remote_code"]),
        ({"spec/engine/args": {"trust-remote-code": False}}, []),
        (
            {"spec/engine/image": "a/b:latest", "spec/router/image": "c"},
            ["spec.engine.image", "spec.router.image"],
        ),
        ({"spec/model/contextLength": 4096}, ["spec.model.contextLength"]),
        ({"spec/transfer": {"backend": "mooncake_tcp"}}, ["spec.transfer.backend"]),
        ({"spec/transfer": {"backend": "mooncake"}}, ["spec.transfer.rdma.resource"]),
        ({"spec/cache/layout": "replicated"}, ["spec.cache.layout"]),
        ({"spec/cache/peerAccess": "off"}, ["spec.cache.peerAccess"]),
        (
            {"spec/autoscaling/decode": {"external": True, "minReplicas": 2, "maxReplicas": 3}},
            ["spec.decode.replicas"],
        ),
    ],
)
def test_what_is_seldom_meant(change: dict[str, Any], fields: list[str]) -> None:
    assert [text.partition(":")[0] for text in told(change)] == fields


def test_a_change_of_the_wire_needs_a_surge_where_all_may_go() -> None:
    rollout = {"spec/rollout": {"maxUnavailable": 1, "maxSurge": 0}}
    changed = {**rollout, "spec/cache/dtype": "bfloat16"}
    found = [text for text in told(changed, rollout) if text.startswith("spec.rollout.maxSurge")]
    assert len(found) == 2
    assert all("spec.cache.dtype changed" in text for text in found)
    assert not [text for text in told(rollout, rollout) if text.startswith("spec.rollout.maxSurge")]
    many = {"spec/prefill/replicas": 3, "spec/decode/replicas": 3}
    assert told({**changed, **many}, {**rollout, **many}) == []
    surge = {"spec/cache/dtype": "bfloat16"}
    assert told(surge, {}) == []


def test_no_warning_is_longer_than_the_api_server_keeps() -> None:
    args = {"spec/model/source": {"hostPath": {"path": "/m"}}, "spec/pods/hostNetwork": True, **ON_H200}
    assert all(len(text) <= MOST_CHARACTERS for text in told(args))


@pytest.mark.parametrize(("family", "weights"), [("glm-5-fp8", 695), ("glm-5", 1386), ("deepseek-v3.2", 628)])
def test_weights_that_one_decode_gpu_cannot_hold_are_told_with_both_figures(
    family: str, weights: int
) -> None:
    """744 and 671 billion parameters, at one byte or two; embedding and head stay at two."""
    (text,) = told({**ON_H200, "spec/model/family": family})
    assert text.startswith("spec.decode: ")
    assert f"about {weights} GiB" in text
    assert "130 of the 140 GiB of its one NVIDIA-H200" in text
    assert text.endswith("use a smaller checkpoint (spec.model.shape)")


def test_of_weights_that_fit_or_that_no_gpu_is_to_hold_nothing_is_said() -> None:
    small = {"spec/model/family": None, "spec/model/shape": {"TINY": True}, "spec/model/contextLength": None}
    assert [text for text in told({**ON_H200, **small}) if text.startswith("spec.decode")] == []
    assert [text for text in told(ON_H200, cpu=True) if text.startswith("spec.decode")] == []
