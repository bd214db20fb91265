"""Manifests of a text: which are deployments, which are not, and how their keys were written."""

import pytest
import yaml

from plait_operator.manifests import KIND, read_manifests

HEAD = f"apiVersion: plait.dev/v1alpha1\nkind: {KIND}\nmetadata: {{name: a}}\n"


def faults(text: str) -> list[tuple[str, str]]:
    [told] = read_manifests(HEAD + text).deployments
    return [(fault.field, fault.reason) for fault in told.faults]


def test_a_deployment_is_read() -> None:
    [told] = read_manifests(HEAD + "spec: {a: [1, {b: yes}]}\n").deployments
    assert told.body["spec"] == {"a": [1, {"b": True}]}
    assert told.faults == ()


@pytest.mark.parametrize(
    ("text", "field", "line"),
    [
        ("spec:\n  on: 3\n", "spec.on", 5),
        ("spec: {1: 2}\n", "spec.1", 4),
        ("spec:\n  a:\n    - b\n    - null: 1\n", "spec.a[1].null", 7),
        ("1.5: 2\n", "1.5", 4),
    ],
)
def test_a_key_that_is_no_text_is_told_as_it_was_written(text: str, field: str, line: int) -> None:
    assert faults(text) == [(field, f"line {line}: key must be a text")]
    [told] = read_manifests(HEAD + text).deployments
    assert all(isinstance(key, str) for key in told.body)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("spec: {a: 1}\nspec: {b: 1}\n", ["spec"]),
        ("spec: {a: 1, a: 2, a: 3}\n", ["spec.a", "spec.a"]),
        ("spec: {l: [{a: 1}, {a: 1, a: 2}]}\n", ["spec.l[1].a"]),
        ("spec: {1: a, '1': b}\n", ["spec.1", "spec.1"]),
        ("spec: {x: &x {a: 1}, y: {<<: *x, a: 2}}\n", []),
        ("spec: &s {a: 1, b: *s}\n", []),
    ],
)
def test_keys_that_stand_twice(text: str, fields: list[str]) -> None:
    assert [field for field, _ in faults(text)] == fields


def test_lists_are_looked_into() -> None:
    items = "".join(
        f"- {{apiVersion: plait.dev/v1alpha1, kind: {KIND}, metadata: {{name: {n}}}}}\n" for n in "ab"
    )
    told = read_manifests(
        f"kind: List\nitems:\n{items}- {{kind: Secret, metadata: {{name: s}}}}\n---\n{HEAD}"
    )
    assert [each.body["metadata"]["name"] for each in told.deployments] == ["a", "b", "a"]
    assert list(map(str, told.skipped)) == ["Secret/s"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: SharedKVdeployment", f"SharedKVdeployment: did you mean {KIND}?"),
        ("kind: SharedKVDeployments", f"SharedKVDeployments: did you mean {KIND}?"),
        ("{apiVersion: plait.dev/v1, kind: Stack}", f"Stack: did you mean {KIND}?"),
        ("{apiVersion: plait.dev/v1alpha1, kind: SharedKVRole}", "SharedKVRole"),
        ("{kind: Deployment, metadata: {name: 5}}", "Deployment/5"),
        ("{a: 1}", "None"),
        ("[a]", "no object"),
    ],
)
def test_others_are_told_and_only_misspelt_ones_are_meant(text: str, told: str) -> None:
    found = read_manifests(text)
    assert found.deployments == ()
    assert list(map(str, found.skipped)) == [told]
    assert found.skipped[0].meant is ("did you mean" in told)


@pytest.mark.parametrize("text", ["a: b: c", "{[a]: 1}", "a: 2026-13-45", "[" * 5000])
def test_what_is_no_yaml(text: str) -> None:
    with pytest.raises((yaml.YAMLError, ValueError)):
        read_manifests(text)


def test_aliases_of_aliases_take_no_time() -> None:
    lines = ["x0: &x0 {a: 1}", *(f"x{n}: &x{n} {{a: *x{n - 1}, b: *x{n - 1}}}" for n in range(1, 60))]
    assert faults("\n".join(lines)) == []
