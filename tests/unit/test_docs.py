"""What README and docs tell a reader to type is what the tools accept; links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from plait import cli
from plait.contract.validate import validate_launch
from plait.model.shape import TinyShape, config_json

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _commands(page: Path) -> list[list[str]]:
    """Words of every line that starts with `plait`, variables in front left in, backslashes joined."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for kind, block in blocks if not kind for line in block.splitlines()]
    return [shlex.split(line) for line in lines if re.match(r"(\w+=\S+ )*(\S*/)?plait ", line)]


def _split(words: list[str]) -> tuple[dict[str, str], str, list[str]]:
    at = next(i for i, word in enumerate(words) if word.rpartition("/")[2] == "plait")
    return dict(word.split("=", 1) for word in words[:at]), words[at + 1], words[at + 2 :]


ALL = [(page.name, *_split(words)) for page in PAGES for words in _commands(page)]


def test_there_are_commands_to_hold_to_account() -> None:
    assert {name for _, _, name, _ in ALL} >= {"up", "engine", "router", "model", "doctor"}


@pytest.mark.parametrize(("page", "env", "name", "args"), ALL)
def test_every_command_parses(page: str, env: dict[str, str], name: str, args: list[str]) -> None:
    group: Any = typer.main.get_command(cli.app)
    assert name in group.commands, f"{page}: plait {name}"
    command = group.commands[name]
    if hasattr(command, "commands"):
        name, args = args[0], args[1:]
        command = command.commands[name]
    command.make_context(name, args, resilient_parsing=False)


@pytest.mark.parametrize(("page", "env", "name", "args"), [each for each in ALL if each[2] == "engine"])
def test_every_engine_command_is_one_that_plait_accepts(
    page: str, env: dict[str, str], name: str, args: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_json(TinyShape())))
    flags = [str(tmp_path) if word == "/models/GLM-5-FP8" else word for word in args if word != "--"]
    found = validate_launch(flags, env, engine_version="0.5.17")
    assert found == [], "\n".join(map(str, found))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert named
    assert named <= targets
