"""Values and their schema: what is listed is known, what is not listed is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

CHART = Path(__file__).parents[3] / "charts/plait"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


def faults(**changed: Any) -> list[str]:
    told = copy.deepcopy(VALUES)
    for path, value in changed.items():
        *steps, last = path.split("__")
        place = told
        for step in steps:
            place = place[step]
        place[last] = value
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message}" for e in VALIDATOR.iter_errors(told)]


def test_the_schema_is_one_and_takes_the_defaults():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert faults() == []


@pytest.mark.parametrize("path", sorted(CHART.glob("values-*.yaml")), ids=lambda p: p.stem)
def test_it_takes_the_values_of_the_examples(path: Path):
    # As helm hands them over: on top of the defaults.
    told = merged(VALUES, yaml.safe_load(path.read_text()))
    assert [e.message for e in VALIDATOR.iter_errors(told)] == []


def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {key: merged(under[key], over[key]) for key in over if isinstance(under.get(key), dict)}
    return {**under, **over, **both}


def properties(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return (SCHEMA["definitions"][name] if name else schema).get("properties", {})


@pytest.mark.parametrize(
    "path", ["", "images", "operator", "admission", "certManager", "networkPolicies", "monitoring"]
)
def test_values_list_all_that_the_schema_knows(path: str):
    values, schema = VALUES, SCHEMA
    if path:
        values, schema = values[path], schema["properties"][path]
    assert set(properties(schema)) - {"global"} == set(values)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("replicas", 3),
        ("operator__replica", 3),
        ("operator__replicas", 0),
        ("operator__replicas", "2"),
        ("admission__timeoutSeconds", 31),
        ("admission__failurePolicy", "Ignore"),
        ("images__registry", "https://mirror.test/project"),
        ("images__registry", "REGISTRY/PROJECT"),
        ("images__registry", "mirror.test/project/"),
        ("images__registry", "mirror.test//project"),
        ("images__registry", " mirror.test"),
        ("images__registry", "mirror.test/my project"),
        ("images__registry", "mirror.test/project:tag"),
        ("images__pullPolicy", "Sometimes"),
        ("images__operator__tag", "a b"),
        ("images__operator__digest", "sha256:abc"),
        ("images__operator__repository", ""),
        ("imagePullSecrets", ["pull"]),
        ("watchNamespaces", ["Upper"]),
        ("watchNamespaces", ["a", "a"]),
        ("experimental", ["anything"]),
        ("logLevel", "loud"),
        ("networkPolicies__apiServerCidrs", []),
        ("networkPolicies__apiServerCidrs", ["10.0.0.1"]),
        ("networkPolicies__apiServerPorts", []),
        ("networkPolicies__apiServerPorts", [0]),
        ("networkPolicies__apiServerPorts", [65536]),
        ("networkPolicies__apiServerPorts", ["8443"]),
        ("networkPolicies__apiServerPorts", [443, 443]),
        ("networkPolicies__apiServerPorts", 8443),
        ("networkPolicies__apiServerPort", [8443]),
        ("certManager__issuerRef", {"kind": "Other", "name": "x"}),
        ("monitoring__serviceMonitor__interval", "often"),
        ("fullnameOverride", "x" * 41),
    ],
)
def test_what_is_refused(change: str, value: object):
    assert faults(**{change: value}) != []


@pytest.mark.parametrize("name", [key for key, value in VALUES.items() if isinstance(value, dict)])
def test_what_templates_look_into_is_there(name: str):
    # Helm drops a default that is set to null; a template would then end in a nil pointer.
    told = {key: value for key, value in VALUES.items() if key != name}
    assert [e.message for e in VALIDATOR.iter_errors(told)] == [f"'{name}' is a required property"]


@pytest.mark.parametrize("name", ["apiServerCidrs", "apiServerPorts"])
def test_a_policys_ends_can_be_narrowed_and_not_left_out(name: str):
    # Helm drops a default that is set to null, and a rule without ports or targets lets everything through.
    told = {key: value for key, value in VALUES["networkPolicies"].items() if key != name}
    assert any(name in fault for fault in faults(networkPolicies=told))


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("watchNamespaces", ["serving", "other"]),
        ("images__registry", ""),
        ("images__registry", "mirror.test:5000/some-project/a_b"),
        ("images__registry", "localhost:5000"),
        ("images__registry", "project"),
        ("images__operator__digest", "sha256:" + "a" * 64),
        ("imagePullSecrets", [{"name": "pull"}]),
        ("networkPolicies__apiServerPorts", [16443]),
        ("certManager__issuerRef", {"kind": "ClusterIssuer", "name": "ca"}),
        ("operator__affinity", {"nodeAffinity": {}}),
        ("global", {"anything": 1}),
    ],
)
def test_what_is_taken(change: str, value: object):
    assert faults(**{change: value}) == []


def test_no_image_names_a_registry():
    assert VALUES["images"]["registry"] == ""
    for name in ("operator", "router", "runtime"):
        assert "/" not in VALUES["images"][name]["repository"]
