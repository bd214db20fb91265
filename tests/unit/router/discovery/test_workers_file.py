"""The workers file: what it may hold, and that every fault is told with its place, value and fix."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from plait.contract.violation import ContractError, Violation
from plait.router.discovery.target import Target
from plait.router.discovery.workers_file import parse_workers, read_workers_file

GOOD = """\
workers:
  prefill:
    - url: http://10.0.0.1:30000
      bootstrapPort: 8998
    - url: http://10.0.0.3:30000
      bootstrapPort: 9000
      bootstrapHost: fd00::3
  decode:
    - {url: "http://10.0.0.2:30000/"}
"""


def faults(text: str) -> dict[str, Violation]:
    with pytest.raises(ContractError) as caught:
        parse_workers(text, name="workers.yaml")
    found = {v.field: v for v in caught.value.violations}
    assert len(found) == len(caught.value.violations), "a field is told twice"
    assert all(v.reason and v.fix for v in found.values())
    return found


def test_yaml_becomes_targets(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(GOOD)
    assert read_workers_file(file) == (
        Target.prefill("http://10.0.0.1:30000", bootstrap_port=8998),
        Target.prefill("http://10.0.0.3:30000", bootstrap_port=9000, bootstrap_host="fd00::3"),
        Target.decode("http://10.0.0.2:30000"),
    )


def test_json_is_read_too() -> None:
    data = {
        "workers": {
            "prefill": [{"url": "http://p:1", "bootstrapPort": 2}],
            "decode": [{"url": "http://d:1"}],
        }
    }
    assert len(parse_workers(json.dumps(data), name="workers.json")) == 2


def test_empty_lists_are_a_statement() -> None:
    assert parse_workers("workers: {prefill: [], decode: []}", name="x") == ()


def test_all_faults_come_at_once_with_their_lines() -> None:
    found = faults("""\
workers:
  prefill:
    - url: 10.0.0.1:30000
      bootstrapPort: "8998"
    - url: http://b:1
      bootstrapport: 8998
    - url: http://c:1
      bootstrapPort: 70000
      bootstrapHost: http://c
    - http://d:1
  decode:
    - url: http://e:1
      url: http://f:1
    - url: http://F:1/
    - url: 5
    - {}
more: 1
""")
    told = {field: (v.value, v.reason.split(":")[0]) for field, v in found.items()}
    assert told == {
        "workers.prefill[0].url": ("10.0.0.1:30000", "line 3"),
        "workers.prefill[0].bootstrapPort": ("8998", "line 4"),
        "workers.prefill[1].bootstrapPort": (None, "line 5"),
        "workers.prefill[1].bootstrapport": (8998, "line 6"),
        "workers.prefill[2].bootstrapPort": (70000, "line 8"),
        "workers.prefill[2].bootstrapHost": ("http://c", "line 9"),
        "workers.prefill[3]": ("http://d:1", "line 10"),
        "workers.decode.0.url": (None, "line 13"),
        "workers.decode[1].url": ("http://F:1/", "line 14"),
        "workers.decode[2].url": (5, "line 15"),
        "workers.decode[3].url": (None, "line 16"),
        "more": (1, "line 17"),
    }
    assert found["workers.prefill[1].bootstrapport"].fix == "did you mean bootstrapPort?"
    assert "workers.decode[0].url too" in found["workers.decode[1].url"].reason
    assert found["more"].fix == "one of workers"


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("", "workers.yaml", "must be a mapping"),
        ("hunter2", "workers.yaml", "must be a mapping"),
        ("[]", "workers.yaml", "must be a mapping"),
        ("workers: [", "workers.yaml", "neither YAML nor JSON"),
        ("a: 2024-13-45", "workers.yaml", "neither YAML nor JSON"),
        ("a: &a [*a]", "workers.yaml", "neither YAML nor JSON"),
        ("workers: !!python/object:os.system x", "workers.yaml", "neither YAML nor JSON"),
        ("{}", "workers", "is missing"),
        ("workers:", "workers", "dictionary"),
        ("workers: {prefill: []}", "workers.decode", "is missing"),
        ("workers: {prefill: [], decode: {}}", "workers.decode", "list"),
        ("workers: {prefill: [], decode: [{url: http://d:1, bootstrapPort: 1}]}", "", "no such field"),
    ],
)
def test_single_faults(text: str, field: str, reason: str) -> None:
    found = faults(text)
    assert len(found) == 1
    (violation,) = found.values()
    assert violation.field == (field or "workers.decode[0].bootstrapPort")
    assert reason in violation.reason


def test_a_wrong_file_is_not_printed() -> None:
    (violation,) = faults("plait-secret-key").values()
    assert "secret" not in str(violation)


def test_one_address_on_both_sides_is_told() -> None:
    found = faults("workers: {prefill: [{url: http://a:1, bootstrapPort: 2}], decode: [{url: http://a:1}]}")
    assert list(found) == ["workers.decode[0].url"]
    assert "workers.prefill[0].url too" in found["workers.decode[0].url"].reason


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b"a: \xff")
    for name, reason in (
        ("missing", "No such file"),
        (".", "no regular file"),
        ("pipe", "no regular file"),
        ("latin", "no UTF-8"),
    ):
        with pytest.raises(ContractError) as caught:
            read_workers_file(tmp_path / name)
        (violation,) = caught.value.violations
        assert violation.field == str(tmp_path / name)
        assert reason in violation.reason
