"""The definitions are those of the models, and keep to what a structural schema may hold."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from plait.contract.validate.engine import RANKS
from plait.router.config import POLICIES
from plait_operator.api.cel import DEPLOYMENT_RULES, ROUTER_POLICIES, Rule
from plait_operator.api.crd import crds, file_name, main, schema_of, text
from plait_operator.api.kinds import KINDS, Kind
from plait_operator.api.spec import SharedKVDeploymentSpec

FOLDER = Path(__file__).parents[4] / "charts" / "plait" / "files" / "crds"
MINIMAL: dict[str, Any] = {
    "model": {"name": "m", "source": {"hub": {"repo": "zai-org/GLM-5"}}},
    "engine": {"image": "sglang:0.5.17"},
}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside `schema`, with its path."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from nodes(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def defaulted(value: Any, schema: dict[str, Any]) -> Any:
    """`value` with the schema's defaults, as the API server fills them in."""
    if isinstance(value, dict):
        for name, field in schema.get("properties", {}).items():
            if name not in value and "default" in field:
                value[name] = copy.deepcopy(field["default"])
            if name in value:
                value[name] = defaulted(value[name], field)
    return value


@pytest.mark.parametrize("crd", crds(), ids=file_name)
def test_the_files_of_the_chart_are_made_from_the_models(crd: dict[str, Any]) -> None:
    told = (FOLDER / file_name(crd)).read_text()
    assert told == text(crd), "run: python -m plait_operator.api.crd charts/plait/files/crds"
    assert yaml.safe_load(told) == crd


def test_there_are_no_other_files() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(file_name(crd) for crd in crds())


def test_written_to_a_folder_and_printed_it_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(tmp_path / "new")
    main()
    written = [yaml.safe_load((tmp_path / "new" / file_name(crd)).read_text()) for crd in crds()]
    assert written == list(yaml.safe_load_all(capsys.readouterr().out)) == crds()


@pytest.mark.parametrize("kind", KINDS, ids=[kind.kind for kind in KINDS])
def test_the_schema_is_structural(kind: Kind) -> None:
    for path, node in nodes(schema_of(kind)):
        assert "type" in node, path
        assert not {"$ref", "anyOf", "oneOf", "allOf", "title", "const", "$defs"} & set(node), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert set(node.get("required", [])) <= set(node.get("properties", {})), path
        if node["type"] == "object" and not {"properties", "additionalProperties"} & set(node):
            assert node.get("x-kubernetes-preserve-unknown-fields"), path


def test_defaults_of_the_api_server_are_those_of_the_models() -> None:
    schema = schema_of(KINDS[0])["properties"]["spec"]
    filled = defaulted(copy.deepcopy(MINIMAL), schema)
    assert SharedKVDeploymentSpec.model_validate(filled) == SharedKVDeploymentSpec.model_validate(MINIMAL)
    assert filled["cache"]["hostTier"] == {"enabled": False}
    assert filled["rollout"] == {"maxUnavailable": 0, "maxSurge": 1, "drainSeconds": 120}


def test_what_is_optional_does_not_come_into_being() -> None:
    filled = defaulted(copy.deepcopy(MINIMAL), schema_of(KINDS[0])["properties"]["spec"])
    assert "autoscaling" not in filled
    assert not {"auth", "tls", "image"} & set(filled["router"])
    assert not {"pvc", "hostPath"} & set(filled["model"]["source"])


def test_a_status_has_no_defaults() -> None:
    assert [p for p, node in nodes(schema_of(KINDS[0])["properties"]["status"]) if "default" in node] == []


def test_free_form_fields_keep_what_they_hold() -> None:
    spec = schema_of(KINDS[0])["properties"]["spec"]["properties"]
    for role in ("prefill", "decode"):
        for name in ("args", "resources", "podTemplate"):
            assert spec[role]["properties"][name]["x-kubernetes-preserve-unknown-fields"]
        assert spec[role]["properties"]["env"]["x-kubernetes-list-map-keys"] == ["name"]
    assert spec["model"]["properties"]["shape"]["x-kubernetes-preserve-unknown-fields"]


def at(path: str) -> dict[str, Any]:
    schema = schema_of(KINDS[0])
    for step in path.split(".") if path else ():
        schema = schema["properties"][step.removesuffix("[]")]
        schema = schema["items"] if step.endswith("[]") else schema
    return schema


@pytest.mark.parametrize("rule", DEPLOYMENT_RULES, ids=lambda rule: f"{rule.at}{rule.field}")
def test_every_rule_stands_at_its_field_and_names_one_that_there_is(rule: Rule) -> None:
    carried = at(rule.at)["x-kubernetes-validations"]
    assert {"rule": rule.rule, "message": rule.message} in [
        {key: each[key] for key in ("rule", "message")} for each in carried
    ]
    assert at(rule.at + rule.field if rule.at else rule.field.removeprefix("."))["type"]


def test_rules_know_what_contract_and_router_know() -> None:
    assert ROUTER_POLICIES == POLICIES
    [ranks] = [rule for rule in DEPLOYMENT_RULES if rule.at == "spec.prefill.contextParallel"]
    assert ranks.rule == f"self in {list(RANKS)}"


def test_strings_and_lists_that_rules_look_into_are_bounded() -> None:
    for rule in DEPLOYMENT_RULES:
        node = at(rule.at + rule.field) if rule.at else {"type": "object"}
        if node["type"] == "string" and ("matches" in rule.rule or "split" in rule.rule):
            assert node["maxLength"] <= 4096, rule.at
    assert at("")["properties"]["metadata"]["properties"]["name"]["maxLength"] == 63


def test_a_rule_for_a_field_that_is_not_there_is_an_error() -> None:
    wrong = KINDS[0]._replace(rules=(Rule("spec.modle", "true", "never"),))
    with pytest.raises(KeyError, match=r"spec\.modle"):
        schema_of(wrong)


def test_names_and_subresources() -> None:
    deployment, role = (crd["spec"] for crd in crds())
    assert (deployment["names"]["shortNames"], role["names"]["shortNames"]) == (["skv"], ["skvr"])
    [version] = deployment["versions"]
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.decode.replicas",
        "statusReplicasPath": ".status.decode.replicas",
        "labelSelectorPath": ".status.decodeSelector",
    }
    columns = [column["name"] for column in version["additionalPrinterColumns"] if not column["priority"]]
    assert columns == [
        "MODEL", "PREFILL", "DECODE", "ROUTER", "CONTEXT", "TOKENS", "AVAILABLE", "REASON", "AGE",
    ]  # fmt: skip
