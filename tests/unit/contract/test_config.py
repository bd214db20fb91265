from pathlib import Path

import pytest

from plait.contract.config import StackConfig, load_config, read_config
from plait.contract.validate import validate_file
from plait.contract.violation import ContractError

GOOD = """\
model: {path: /models/glm-5, contextLength: 131072}
cache: {layout: shared, split: page-zigzag, pageSize: 64, dtype: fp8_e4m3, prefetch: no, scratchTokens: 640}
prefill:
  contextParallel: 4
  args:
    --chunked-prefill-size: 8192
    random_seed: 1
decode: {replicas: 2, args: {port: 30001}}
transfer: {backend: mooncake}
engine: {version: 0.5.17}
"""


def write(folder: Path, text: str, name: str = "stack.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_every_field_is_read(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    assert config.model.path == "/models/glm-5"
    assert config.model.context_length == 131072
    assert (config.cache.split, config.cache.prefetch, config.cache.scratch_tokens) == (
        "page-zigzag",
        False,
        640,
    )
    assert config.prefill.context_parallel == 4
    assert config.prefill.args == {"--chunked-prefill-size": 8192, "random_seed": 1}
    assert (config.decode.replicas, config.decode.args) == (2, {"port": 30001})
    assert (config.transfer.backend, config.engine.version) == ("mooncake", "0.5.17")


def test_json_is_read_too(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, '{"prefill": {"contextParallel": 2}}', "stack.json"))
    assert config == StackConfig.model_validate({"prefill": {"context_parallel": 2}})


def test_faults_of_form_come_all_at_once_with_their_lines(tmp_path: Path) -> None:
    text = GOOD.replace("scratchTokens: 640", 'scratchTokens: "640", pagesize: 1').replace(
        "replicas: 2", "replicas: 0"
    )
    with pytest.raises(ContractError) as caught:
        load_config(write(tmp_path, text + "caches: {}\n"))
    told = {v.field: v for v in caught.value.violations}
    assert set(told) == {"cache.scratchTokens", "cache.pagesize", "decode.replicas", "caches"}
    assert told["cache.scratchTokens"].value == "640"
    assert told["cache.scratchTokens"].reason.startswith("line 2: ")
    assert "pageSize" in told["cache.pagesize"].fix
    assert told["decode.replicas"].reason.startswith("line 8: ")
    assert "cache" in told["caches"].fix


_MANIFEST = "apiVersion: plait.dev/v1alpha1\nkind: SharedKVDeployment\nmetadata: {name: a}\n"


@pytest.mark.parametrize(
    "text", [_MANIFEST, _MANIFEST + "---\nkind: Secret\n", "cache: {}\n---\n" + _MANIFEST]
)
def test_a_manifest_is_one_fault_that_names_the_right_command(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ContractError) as caught:
        load_config(file)
    [told] = caught.value.violations
    assert "Kubernetes manifest" in told.reason
    assert told.fix == f"use `plait plan {file}`"


def test_a_file_holds_one_stack(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="holds 2 YAML documents"):
        load_config(write(tmp_path, "cache: {}\n---\ncache: {}\n"))
    with pytest.raises(ContractError, match="must be a mapping"):
        load_config(write(tmp_path, ""))


def test_what_is_well_formed_is_still_read(tmp_path: Path) -> None:
    read = read_config(write(tmp_path, GOOD.replace("replicas: 2", "replicas: two")))
    assert [v.field for v in read.malformed] == ["decode.replicas"]
    assert read.config.decode.args == {"port": 30001}
    assert read.config.prefill.context_parallel == 4


def test_a_section_of_the_wrong_kind_is_one_fault(tmp_path: Path) -> None:
    read = read_config(write(tmp_path, "cache: 5\nprefill: {args: [a]}\n"))
    assert [v.field for v in read.malformed] == ["cache", "prefill.args"]


def test_a_key_that_is_no_text_is_a_fault_of_its_own(tmp_path: Path) -> None:
    read = read_config(write(tmp_path, "prefill: {args: {1: 2, port: 3}}\n"))
    assert [v.field for v in read.malformed] == ["prefill.args.1"]
    assert read.config.prefill.args == {"port": 3}


def test_a_repeated_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"engine.*line 11.*twice"):
        load_config(write(tmp_path, GOOD + "engine: {version: 0.5.17}\n"))


@pytest.mark.parametrize("text", ["- a\n", "a: [\n", "a: b: c\n", "just text\n", ""])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ContractError, match=r"stack\.yaml"):
        read_config(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"none\.yaml"):
        read_config(tmp_path / "none.yaml")


def test_the_page_shows_every_field_and_its_default(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "check.md").read_text()
    shown = page.partition("```yaml\n")[2].partition("```")[0]
    path = write(tmp_path, shown)
    assert validate_file(path) == []
    config, default = load_config(path), StackConfig()
    said = 0
    for name in StackConfig.model_fields:
        section = getattr(config, name)
        for field, told in type(section).model_fields.items():
            line = next(each for each in shown.splitlines() if f" {told.alias}:" in each)
            if line.rpartition("# ")[2].startswith(("default,", "default;")) or line.endswith("# default"):
                assert getattr(section, field) == getattr(getattr(default, name), field), line
                said += 1
    assert said == 6
