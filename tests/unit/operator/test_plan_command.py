"""`plait plan FILE`, as people and scripts run it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.operator.plan.test_inspect import CONFIG
from typer.testing import CliRunner, Result

from plait import cli

EXAMPLES = sorted(Path("charts/plait/examples").glob("*.yaml"))
GOOD: dict[str, Any] = {
    "apiVersion": "plait.dev/v1alpha1",
    "kind": "SharedKVDeployment",
    "metadata": {"name": "glm"},
    "spec": {
        "model": {"name": "m", "source": {"pvc": {"claimName": "c"}}, "family": "deepseek-v3.2"},
        "engine": {"image": "sglang:0.5.17"},
    },
}


def plan(*args: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, ["plan", *args], input=stdin, env={"COLUMNS": "200"})


@pytest.fixture
def good(tmp_path: Path) -> str:
    return written(tmp_path, GOOD)


def written(folder: Path, *bodies: Any) -> str:
    path = folder / "skv.yaml"
    path.write_text(yaml.safe_dump_all(bodies))
    return str(path)


def unknown() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(GOOD))
    del told["spec"]["model"]["family"]
    return told


def test_a_table(good: str) -> None:
    told = plan(good)
    assert told.exit_code == 0, told.output
    for text in ("Deployment/glm-router", "Deployment/glm-prefill-", "8 nvidia.com/gpu", "contract: wire"):
        assert text in told.output


def test_json(good: str) -> None:
    [told] = json.loads(plan(good, "--json").stdout)
    assert told["ok"]
    assert told["deployment"] == "default/glm"
    kinds = [one["manifest"]["kind"] for one in told["actions"] if one["action"] == "Apply"]
    assert kinds.count("Deployment") == 3


def test_yaml(good: str) -> None:
    text = plan(good, "--yaml").stdout
    manifests = list(yaml.safe_load_all(text))
    assert {"Deployment", "ConfigMap", "NetworkPolicy"} <= {one["kind"] for one in manifests}
    assert "&id" not in text


def test_several_in_one_file_and_others_beside(tmp_path: Path) -> None:
    other = {**GOOD, "metadata": {"name": "other", "namespace": "n"}}
    told = json.loads(plan(written(tmp_path, GOOD, {"kind": "Secret"}, other), "--json").stdout)
    assert [one["deployment"] for one in told] == ["default/glm", "n/other"]


def test_what_is_no_deployment_is_told_and_a_misspelt_one_fails(tmp_path: Path) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "keys"}}
    told = plan(written(tmp_path, GOOD, secret))
    assert told.exit_code == 0
    assert "skipped: Secret/keys\n" in told.stderr
    told = plan(written(tmp_path, GOOD, {**GOOD, "kind": "SharedKVdeployment"}), "--json")
    assert told.exit_code == 1
    assert "skipped: SharedKVdeployment/glm: did you mean SharedKVDeployment?" in told.stderr
    assert [one["ok"] for one in json.loads(told.stdout)] == [True]


def test_a_published_model_is_known_by_its_repository_as_at_admission(tmp_path: Path) -> None:
    body = unknown()
    body["spec"]["model"]["source"] = {"hub": {"repo": "deepseek-ai/DeepSeek-V3.2"}}
    told = plan(written(tmp_path, body))
    assert told.exit_code == 0, told.output
    assert "contract: wire" in told.output
    assert "Job/" not in told.output
    # Its own family is refused as at admission, when it is another's.
    body["spec"]["model"]["family"] = "glm-5-fp8"
    assert "spec.model.family" in plan(written(tmp_path, body)).output


def test_faults_of_the_text_come_with_those_of_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    text = yaml.safe_dump({**GOOD, "spec": {**GOOD["spec"], "cache": {"pageSize": 32}}})
    path.write_text(f"{text}  on: 3\n  router: {{replicas: 2}}\n  router: {{replicas: 3}}\n")
    [told] = json.loads(plan(str(path), "--json").stdout)
    fields = {one["field"]: one["reason"] for one in told["violations"]}
    assert len(fields) == len(told["violations"]) == 3
    assert fields["spec.on"].endswith("key must be a text")
    assert fields["spec.router"].endswith("is written twice, and only one can hold")
    assert "spec.cache.pageSize" in fields


@pytest.mark.parametrize(
    ("option", "name", "known"),
    [
        ("--experimental", "foo", "multi-host-groups"),
        ("--api", "foo", "LeaderWorkerSet, PodMonitor, ServiceMonitor"),
        ("--api", "Deployment", "ServiceMonitor"),
    ],
)
def test_a_name_that_means_nothing_is_refused(good: str, option: str, name: str, known: str) -> None:
    told = plan(good, option, name)
    assert told.exit_code == 2
    assert f"{option}: '{name}' is none of " in told.output
    assert known in told.output


@pytest.mark.parametrize("columns", ["40", None])
def test_names_are_never_cut(tmp_path: Path, columns: str | None) -> None:
    body = {**GOOD, "metadata": {"name": "a-name-of-some-length-as-teams-write-them"}}
    path = written(tmp_path, body)
    told = CliRunner().invoke(cli.app, ["plan", path], env={"COLUMNS": columns})
    assert told.exit_code == 0
    assert "…" not in told.output
    if columns is None:  # a pipe
        [plan_] = json.loads(plan(path, "--json").stdout)
        applied = [one["manifest"] for one in plan_["actions"] if one["action"] == "Apply"]
        assert applied
        for manifest in applied:
            assert f"{manifest['kind']}/{manifest['metadata']['name']} " in told.output


def test_standard_input() -> None:
    assert plan("-", stdin=yaml.safe_dump(GOOD)).exit_code == 0


def test_a_refused_one_tells_every_field(tmp_path: Path) -> None:
    bad = json.loads(json.dumps(GOOD))
    bad["spec"]["cache"] = {"pageSize": 32}
    bad["spec"]["prefil"] = {}
    path = written(tmp_path, bad)
    told = plan(path)
    assert told.exit_code == 1
    assert "spec.cache.pageSize" in told.output
    assert "spec.prefil" in told.output
    [found] = json.loads(plan(path, "--json").stdout)
    assert not found["ok"]
    assert found["actions"] == []
    assert {"spec.cache.pageSize", "spec.prefil"} <= {one["field"] for one in found["violations"]}
    assert plan(path, "--yaml").exit_code == 1


def test_without_a_shape_the_job_and_a_hint(tmp_path: Path) -> None:
    told = plan(written(tmp_path, unknown()))
    assert told.exit_code == 0
    assert "Job/glm-inspect-" in told.output
    assert "--config FILE" in told.output
    assert "Deployment/glm-prefill-" not in told.output


def test_with_the_models_config_engines_are_planned(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    told = plan(written(tmp_path, unknown()), "--config", str(config))
    assert told.exit_code == 0, told.output
    assert "Deployment/glm-prefill-" in told.output
    assert "Job/" not in told.output


def test_optional_kinds(good: str) -> None:
    assert "ServiceMonitor" not in plan(good).output
    assert "ServiceMonitor/" in plan(good, "--api", "ServiceMonitor").output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no SharedKVDeployment (it holds: nothing)"),
        ("kind: Secret", "it holds: Secret"),
        ("- a", "it holds: no object"),
        ("a: b: c", "is no YAML"),
    ],
)
def test_no_manifest(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    told = plan(str(path))
    assert told.exit_code == 2
    assert words in told.output


def test_no_file(tmp_path: Path, good: str) -> None:
    assert "cannot be read" in plan(str(tmp_path / "none")).output
    assert "cannot be read" in plan(good, "--config", str(tmp_path / "none")).output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ("{}", "config.json"),
        ("[1]", "not a JSON object"),
        ('"x"', "not a JSON object"),
    ],
)
def test_no_config(tmp_path: Path, good: str, text: str, words: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(text)
    told = plan(good, "--config", str(config))
    assert told.exit_code == 2
    assert words in told.output


def test_json_and_yaml_exclude_each_other(good: str) -> None:
    assert plan(good, "--json", "--yaml").exit_code == 2


def test_without_the_operators_package(good: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "plait_operator"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plait_operator", None)
    told = plan(good)
    assert told.exit_code == 2
    assert "pip install 'plait[operator]'" in told.output


def test_examples_are_there() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples(path: Path) -> None:
    assert plan(str(path)).exit_code == 0
