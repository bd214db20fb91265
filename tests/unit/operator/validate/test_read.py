import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cluster.admission.matrix import BAD, GOOD, manifest

from plait.contract.families import FAMILIES
from plait_operator.validate import read, read_replicas, read_role, validate_spec
from plait_operator.validate.read import MOST_ARGUMENTS, MOST_VALUES

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, inner in items:
        found += _paths(inner, (*path, key))
    return found


_STATUS = {
    "metadata/labels": {"a": "b"},
    "metadata/finalizers": ["f"],
    "status": {"conditions": [{"type": "t"}]},
}
_MANIFESTS = [manifest(_STATUS | row.change, cpu=row.cpu) for row in (*GOOD, *BAD)]
_PLACES = [(body, path) for body in _MANIFESTS for path in _paths(body)]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(place=st.sampled_from(_PLACES), value=_JSON)
def test_whatever_stands_anywhere_is_told_and_never_raised(
    place: tuple[dict[str, Any], tuple[Any, ...]], value: object
) -> None:
    body, path = copy.deepcopy(place[0]), place[1]
    node: Any = body
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    deployment, found = read(body)
    assert deployment is not None or found
    for violation in found:
        assert violation.field
        assert violation.reason
        assert violation.fix
        assert str(violation)
    again = read(body)[1]
    assert [str(v) for v in again] == [str(v) for v in found]


@given(
    body=st.dictionaries(st.sampled_from(["apiVersion", "kind", "metadata", "spec", "status", "x"]), _JSON)
)
@settings(max_examples=60, deadline=None)
def test_nothing_is_too_odd_to_be_read(body: dict[str, Any]) -> None:
    deployment, found = read(body)
    assert deployment is None
    assert found
    read_role(body)
    read_replicas(body)


def test_a_deployment_comes_beside_faults_of_the_contract_but_not_of_form() -> None:
    deployment, found = read(manifest({"spec/cache/layout": "plain"}))
    assert deployment is not None
    assert deployment.meta.name == "glm"
    assert [v.field for v in found] == ["spec.cache.layout"]
    deployment, found = read(manifest({"spec/cache/layout": 5}))
    assert deployment is None
    assert [v.field for v in found] == ["spec.cache.layout"]


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"apiVersion": "plait.dev/v1"}, ["apiVersion"]),
        ({"kind": "SharedKVRole"}, ["kind"]),
        ({"metadata/name": None}, ["metadata.name"]),
        ({"metadata/name": 5}, ["metadata.name"]),
        ({"metadata": {"generateName": "glm-"}}, []),
        ({"metadata": []}, ["metadata"]),
        ({"metadata": None}, ["metadata"]),
        ({"metadata/labels": 3, "metadata/finalizers": "x"}, ["metadata.labels", "metadata.finalizers"]),
        ({"status": {"conditions": 5}}, []),
        ({"status": "x"}, []),
    ],
)
def test_what_stands_around_the_spec(change: dict[str, Any], fields: list[str]) -> None:
    assert [v.field for v in read(manifest(change))[1]] == fields


@pytest.mark.parametrize(
    ("name", "reason"), [(None, "is missing"), ("", "is missing"), (5, "must be a text")]
)
def test_a_name_that_is_none_and_one_that_is_no_text_are_told_apart(name: object, reason: str) -> None:
    body = manifest({})
    body["metadata"]["name"] = name
    assert [(v.field, v.reason) for v in read(body)[1]] == [("metadata.name", reason)]


@pytest.mark.parametrize(
    ("place", "key", "field"),
    [
        ((), True, "spec.true"),
        ((), None, "spec.null"),
        ((), 1, "spec.1"),
        (("engine", "args"), 1, "spec.engine.args.1"),
        (("engine", "args"), 1.5, "spec.engine.args.1.5"),
        (("prefill", "podTemplate", "metadata", "labels"), 5, "spec.prefill.podTemplate.metadata.labels.5"),
    ],
)
def test_a_key_that_is_no_text_is_told_with_the_rest(place: tuple[str, ...], key: object, field: str) -> None:
    body = manifest({"spec/cache/pageSize": 32})
    node = body["spec"]
    for step in place:
        node = node.setdefault(step, {})
    node[key] = 2
    deployment, found = read(body)
    assert deployment is None
    told = {v.field: v for v in found}
    assert set(told) == {field, "spec.cache.pageSize"}
    assert (told[field].reason, told[field].fix) == ("key must be a text", "put it in quotes")


def test_an_inspected_shape_is_checked_where_the_manifest_tells_none() -> None:
    body = manifest({"spec/model/family": None, "spec/model/contextLength": 300_000})
    assert read(body)[1] == []
    shape = FAMILIES["glm-5-fp8"]
    assert [v.field for v in read(body, shape=shape)[1]] == ["spec.model.contextLength"]
    # What the manifest says goes before.
    other = manifest({"spec/model/contextLength": 180_000})
    assert read(other, shape=FAMILIES["deepseek-v3.2"])[1] == []


def test_a_manifest_that_no_one_writes_is_refused_before_it_is_read() -> None:
    large = manifest({"spec/engine/env": [{"name": "A", "value": "1"}] * MOST_VALUES})
    assert [v.field for v in read(large)[1]] == ["spec"]
    args = {f"argument_{number}": 1 for number in range(MOST_ARGUMENTS + 1)}
    assert [v.field for v in read(manifest({"spec/decode/args": args}))[1]] == ["spec.decode.args"]


def test_several_nodes_are_let_through_where_asked_for_and_only_they() -> None:
    body = manifest({"spec/prefill/nodesPerGroup": 2})
    assert [v.field for v in read(body)[1]] == ["spec.prefill.nodesPerGroup"]
    experimental = frozenset({"multi-host-groups"})
    assert read(body, experimental=experimental)[1] == []
    three = manifest({"spec/prefill/nodesPerGroup": 3, "spec/cache/peerAccess": "required"})
    fields = [v.field for v in read(three, experimental=experimental)[1]]
    assert fields == ["spec.cache.peerAccess", "spec.prefill.nodesPerGroup"]
    deployment, _ = read(body)
    assert deployment is not None
    assert validate_spec(deployment.spec, shape=None, experimental=experimental) == []
