"""podTemplate over a pod: what is merged, what is replaced, what is added."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait_operator.children.merge import merged, merged_env

BASE = {
    "containers": [
        {"name": "engine", "image": "a", "env": [{"name": "X", "value": "1"}], "args": ["one", "two"]},
    ],
    "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}],
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "nodeSelector": {"product": "h200"},
    "imagePullSecrets": [{"name": "one"}],
    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
}


@pytest.mark.parametrize(
    ("patch", "path", "expected"),
    [
        ({"priorityClassName": "high"}, "priorityClassName", "high"),
        ({"nodeSelector": {"pool": "x"}}, "nodeSelector", {"pool": "x"}),
        (
            {"securityContext": {"fsGroup": 1}},
            "securityContext",
            {"seccompProfile": {"type": "RuntimeDefault"}, "fsGroup": 1},
        ),
        (
            {"tolerations": [{"key": "kwok"}, {"key": "gpu", "operator": "Exists"}]},
            "tolerations",
            [{"key": "gpu", "operator": "Exists"}, {"key": "kwok"}],
        ),
        ({"imagePullSecrets": [{"name": "two"}]}, "imagePullSecrets", [{"name": "one"}, {"name": "two"}]),
        (
            {"volumes": [{"name": "tmp", "hostPath": {"path": "/x"}}]},
            "volumes",
            [{"name": "tmp", "hostPath": {"path": "/x"}}],
        ),
        ({"volumes": [{"name": "new"}]}, "volumes", [BASE["volumes"][0], {"name": "new"}]),
        ({"volumes": [{"name": "tmp", "$patch": "delete"}]}, "volumes", []),
        (
            {"containers": [{"name": "engine", "tty": True}]},
            "containers",
            [{**BASE["containers"][0], "tty": True}],
        ),
        (
            {"containers": [{"name": "engine", "args": ["three"]}]},
            "containers",
            [{**BASE["containers"][0], "args": ["three"]}],
        ),
        (
            {"containers": [{"name": "engine", "env": [{"name": "Y", "value": "2"}]}]},
            "containers",
            [{**BASE["containers"][0], "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}],
        ),
        (
            {"containers": [{"name": "engine", "env": [{"name": "X", "valueFrom": {"fieldRef": {}}}]}]},
            "containers",
            [{**BASE["containers"][0], "env": [{"name": "X", "valueFrom": {"fieldRef": {}}}]}],
        ),
        (
            {"containers": [{"name": "sidecar", "image": "s"}]},
            "containers",
            [BASE["containers"][0], {"name": "sidecar", "image": "s"}],
        ),
    ],
)
def test_a_field_follows_its_rule(patch, path, expected):
    before = copy.deepcopy(BASE)
    told = merged(BASE, patch)
    assert told[path] == expected
    assert {key: value for key, value in told.items() if key != path} == {
        key: value for key, value in BASE.items() if key != path
    }
    assert before == BASE


def test_null_takes_a_field_away():
    assert "nodeSelector" not in merged(BASE, {"nodeSelector": None})
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}) == {"a": {"c": 2}}


def test_ports_of_two_protocols_are_two():
    base = {"ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "name": "t"}]}
    told = merged(base, {"ports": [{"containerPort": 53, "protocol": "TCP", "hostPort": 1}]})
    assert told["ports"] == [
        {"containerPort": 53, "protocol": "UDP"},
        {"containerPort": 53, "name": "t", "protocol": "TCP", "hostPort": 1},
    ]


def test_a_later_variable_stands_last_and_once():
    told = merged_env(
        [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
        [{"name": "C", "value": "$(A)"}],
        [{"name": "A", "value": "2"}],
    )
    assert [(v["name"], v["value"]) for v in told] == [("B", "1"), ("C", "$(A)"), ("A", "2")]


@pytest.mark.parametrize(
    "patch",
    [
        {"containers": "none"},
        {"containers": [{"image": "nameless"}]},
        {"containers": ["engine"]},
        {"containers": [{"name": "engine", "env": ["X=1"]}]},
        {"volumes": {"tmp": {}}},
        {"tolerations": "all"},
        {"containers": [{"name": ["engine"]}]},
        {"containers": [{"name": "engine", "env": [{"value": "nameless"}]}]},
        {"containers": [{"name": "engine", "env": [{"name": ["nameless"]}]}]},
    ],
)
def test_what_no_pod_can_have_is_passed_on(patch):
    """The API server says what is wrong with it; nothing is lost or raised on the way."""
    told = str(merged(BASE, patch))
    for leaf in ("none", "nameless", "X=1", "all"):
        assert (leaf in told) == (leaf in str(patch))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*"abc", "name", *BASE, "env", "$patch"]), inner, max_size=4)
    ),
    max_leaves=12,
)
MAPS = st.dictionaries(st.sampled_from([*"abc", *BASE]), JSON, max_size=5)


@given(MAPS, MAPS)
def test_any_two_merge_and_stay_as_they_were(base, patch):
    before = copy.deepcopy((base, patch))
    told = merged(base, patch)
    assert (base, patch) == before
    assert told == merged(copy.deepcopy(base), copy.deepcopy(patch))
    assert merged(base, {}) == base
    assert set(told) == (set(base) | set(patch)) - {key for key, value in patch.items() if value is None}


@given(MAPS)
def test_the_answer_shares_nothing_with_the_patch(patch):
    told, before = merged({}, patch), copy.deepcopy(patch)
    for value in told.values():
        if isinstance(value, dict | list):
            value.clear()
    assert patch == before
