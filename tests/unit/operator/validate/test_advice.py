from typing import Any

import pytest
from tests.cluster.admission.matrix import manifest

from plait_operator.api.resource import SharedKVDeployment
from plait_operator.validate import warnings
from plait_operator.validate.advice import MOST_CHARACTERS

QUIET: dict[str, Any] = {
    "spec/router/auth": {"secretRef": {"name": "keys"}},
    "spec/router/tls": {"secretRef": {"name": "tls"}},
}


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
    args = {"spec/model/source": {"hostPath": {"path": "/m"}}, "spec/pods/hostNetwork": True}
    assert all(len(text) <= MOST_CHARACTERS for text in told(args))
