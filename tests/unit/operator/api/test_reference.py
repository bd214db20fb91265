"""The reference page is the models', and leaves nothing out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.contract.families import FAMILIES
from plait_operator.api.cel import DEPLOYMENT_RULES, ROUTER_POLICIES
from plait_operator.api.crd import schema_of
from plait_operator.api.kinds import KINDS
from plait_operator.api.reasons import MEANING, Reason
from plait_operator.api.reference import markdown
from plait_operator.api.status import ConditionType

PAGE = Path(__file__).parents[4] / "docs" / "crd.md"


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(field.get("items", field), f"{path}.{name}")


FIELDS = [
    (kind.kind, path, field)
    for kind in KINDS
    for part in ("spec", "status")
    for path, field in fields(schema_of(kind)["properties"][part], part)
]


def test_the_page_is_made_from_the_models() -> None:
    told = PAGE.read_text()
    assert told == markdown(), "run: python -m plait_operator.api.reference > docs/crd.md"


@pytest.mark.parametrize(("kind", "path", "field"), FIELDS, ids=[f"{k}-{p}" for k, p, _ in FIELDS])
def test_every_field_is_on_the_page_and_says_what_it_is(kind: str, path: str, field: dict[str, Any]) -> None:
    assert f"| `{path.rpartition('.')[2]}` |" in markdown()
    assert field.get("description") or path.endswith(("env.name", "conditions.type")), path


@pytest.mark.parametrize("rule", DEPLOYMENT_RULES, ids=lambda rule: f"{rule.at}{rule.field}")
def test_every_rule_is_on_the_page(rule: Any) -> None:
    assert rule.message.removeprefix("metadata.name: ") in markdown().replace("\\|", "|")


@pytest.mark.parametrize(
    ("section", "name", "values"),
    [
        ("spec.model", "family", list(FAMILIES)),
        ("spec.engine", "device", ["cuda", "cpu"]),
        ("spec.cache", "layout", ["shared", "replicated"]),
        ("spec.cache", "pageSize", ["64"]),
        ("spec.prefill", "contextParallel", ["2", "4", "8"]),
        ("spec.router", "decodePolicy", list(ROUTER_POLICIES)),
    ],
)
def test_what_a_field_may_be_stands_in_its_row(section: str, name: str, values: list[str]) -> None:
    part = markdown().partition(f"### `{section}`\n")[2].partition("###")[0]
    (row,) = [line for line in part.splitlines() if line.startswith(f"| `{name}` |")]
    told = row.replace("\\|", "or").split("|")[2].strip()
    assert told == " or ".join(f"`{value}`" for value in values)


@pytest.mark.parametrize("rule", DEPLOYMENT_RULES, ids=lambda rule: f"{rule.at}{rule.field}")
def test_a_rule_that_lists_values_tells_them_to_the_page(rule: Any) -> None:
    assert bool(rule.values) == bool(re.match(r"self (in \[|== [0-9])", rule.rule))
    assert all(repr(value) in rule.rule for value in rule.values)


def test_sections_that_are_alike_are_told_once() -> None:
    page = markdown()
    assert page.count("### `status.prefill`, `status.decode`, `status.router`\n") == 1
    assert page.count("Pods (groups) that are there and not on their way out.") == 1
    heads = [line for line in page.splitlines() if line.startswith("### `spec")]
    assert "### `spec.prefill`" in heads
    assert "### `spec.decode`" in heads


def test_every_condition_and_reason_is_on_the_page() -> None:
    page = markdown()
    assert list(MEANING) == list(ConditionType)
    for reason in Reason:
        assert f"| {reason.value}{' *' if reason.lasting else ''} | {reason.about} |" in page


def test_reasons_are_words_as_kubernetes_wants_them() -> None:
    for reason in Reason:
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]{1,62}", reason.value)
        assert reason.about.endswith(".")
