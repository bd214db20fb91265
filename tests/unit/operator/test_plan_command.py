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


@pytest.mark.parametrize(("text", "words"), [("{", "is no JSON"), ("{}", "config.json")])
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
