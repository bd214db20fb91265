from typing import Any

import pytest
from tests.cluster.admission.matrix import manifest

from plait.contract.settings import Settings
from plait_operator.validate import read
from plait_operator.validate.environment import FREE, OWNED, is_true


def told(*env: Any, place: str = "engine") -> list[str]:
    found = read(manifest({f"spec/{place}/env": list(env)}))[1]
    return [v.field.removeprefix(f"spec.{place}.env") for v in found]


@pytest.mark.parametrize("place", ["engine", "prefill", "decode"])
@pytest.mark.parametrize("name", [*OWNED, "LWS_LEADER_ADDRESS"])
def test_variables_of_the_operator_are_refused_once_whatever_they_hold(name: str, place: str) -> None:
    assert told({"name": name, "value": "1"}, place=place) == ["[0].name"]
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    assert told({"name": name, "valueFrom": source}, place=place) == ["[0].name"]


def test_every_setting_is_either_the_operators_or_free() -> None:
    free = {row.name for row in Settings().describe()} - set(OWNED)
    assert free == {
        "PLAIT_STATUS_INTERVAL_S",
        "PLAIT_TRANSFER_TIMEOUT_S",
        "PLAIT_INTEGRITY",
        "PLAIT_DEBUG_CHECKS",
        "PLAIT_NVTX",
        "PLAIT_PEER_TIMEOUT_S",
        "PLAIT_GATHER_PATH",
        "PLAIT_GATHER_COSTS",
        "PLAIT_GATHER_LOG",
        "PLAIT_KERNELS",
        "PLAIT_NARROW_TAIL",
    }
    for row in Settings().describe():
        if row.name in free:
            assert told({"name": row.name, "value": row.default}) == []


@pytest.mark.parametrize(
    ("entry", "fields"),
    [
        ({"name": "A"}, []),
        ({"name": "A", "value": ""}, []),
        ({"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "p"}}}, ["[0].valueFrom"]),
        ({"name": "A", "valueFrom": {"fieldRf": {}}}, ["[0].valueFrom.fieldRf"]),
        ({"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}, ["[0].valueFrom.secretKeyRef.key"]),
        ({"name": "1A", "value": "x"}, ["[0].name"]),
        ({"name": "A", "val": "x"}, ["[0].val"]),
        ({"name": "PLAIT_NVTX", "value": ""}, ["[0].value"]),
        ({"name": "PLAIT_NVTX", "value": "maybe"}, ["[0].value"]),
        ({"name": "PLAIT_NVTXS", "value": "1"}, ["[0].name"]),
        ({"name": "SGLANG_ENABLE_CP_V2", "value": "0"}, ["[0].value"]),
        ({"name": "SGLANG_ENABLE_CP_V2", "value": "1"}, []),
        ({"name": "SGLANG_ENABLE_CP_V2", "valueFrom": {"fieldRef": {"fieldPath": "p"}}}, ["[0].valueFrom"]),
        ({"name": "SGLANG_DISABLE_DSA_INDEXER_FUSION", "value": "0"}, ["[0].value"]),
        ({"name": "NCCL_DEBUG", "value": "INFO"}, []),
    ],
)
def test_entries(entry: dict[str, Any], fields: list[str]) -> None:
    assert told(entry) == fields


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("PLAIT_NVTXS", "did you mean PLAIT_NVTX?"),
        ("PLAIT_TRANSFER_TIMEOUT", "did you mean PLAIT_TRANSFER_TIMEOUT_S?"),
        # What it is nearest to is refused itself.
        ("PLAIT_LAYOUTS", f"remove it; free are {', '.join(FREE)}"),
        ("PLAIT_FOO", f"remove it; free are {', '.join(FREE)}"),
    ],
)
def test_only_settings_that_a_manifest_may_write_are_proposed(name: str, fix: str) -> None:
    [violation] = read(manifest({"spec/engine/env": [{"name": name, "value": "1"}]}))[1]
    assert violation.fix == fix


def test_the_same_name_in_two_lists_is_the_roles_own() -> None:
    change = {
        "spec/engine/env": [{"name": "A", "value": "1"}],
        "spec/prefill/env": [{"name": "A", "value": "2"}],
    }
    assert read(manifest(change))[1] == []


@pytest.mark.parametrize(
    ("env", "holds"),
    [
        ([], False),
        ([{"name": "A", "value": "True"}], True),
        ([{"name": "A", "value": "1"}, {"name": "A", "value": "0"}], False),
        ([{"name": "A"}], False),
        ([{"name": "B", "value": "1"}], False),
    ],
)
def test_what_the_engine_reads_as_true(env: list[dict[str, Any]], holds: bool) -> None:
    assert is_true(env, "A") is holds


@pytest.mark.parametrize("place", ["engine", "prefill"])
@pytest.mark.parametrize("access", ["auto", "off"])
@pytest.mark.parametrize("way", ["auto", "copy", "pull", "collective", "peer-view"])
def test_a_way_of_gathering_that_reads_peers_needs_peers(way: str, access: str, place: str) -> None:
    env = [{"name": "A", "value": way}, {"name": "PLAIT_GATHER_PATH", "value": way}]
    found = read(manifest({f"spec/{place}/env": env, "spec/cache/peerAccess": access}))[1]
    refused = access == "off" and way in ("copy", "pull", "peer-view")
    assert [v.field for v in found] == ([f"spec.{place}.env[1].value"] if refused else [])


def test_of_decode_no_way_of_gathering_is_asked() -> None:
    env = [{"name": "PLAIT_GATHER_PATH", "value": "copy"}]
    assert read(manifest({"spec/decode/env": env, "spec/cache/peerAccess": "off"}))[1] == []
