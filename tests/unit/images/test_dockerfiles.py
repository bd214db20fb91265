"""What every Dockerfile keeps to: a base by argument, pinned packages, nothing fetched by hand, a user."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from plait.contract.versions import ENGINE_VERSIONS

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "images").glob("*/Dockerfile"))


class Step(NamedTuple):
    """One instruction, with continuation lines joined."""

    word: str
    rest: str


def steps(file: Path) -> list[Step]:
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.M)
    text = re.sub(r"\\\n\s*", " ", text)
    return [Step(*line.split(None, 1)) for line in text.splitlines() if line.strip()]


def last_stage(file: Path) -> list[Step]:
    all_ = steps(file)
    start = max(n for n, step in enumerate(all_) if step.word == "FROM")
    return all_[start:]


def test_all_images_are_looked_at() -> None:
    assert [file.parent.name for file in FILES] == ["engine-cpu", "operator", "router", "runtime"]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.parent.name)
class TestDockerfile:
    def test_the_base_is_an_argument_without_a_registry(self, file: Path) -> None:
        first = steps(file)[0]
        assert re.fullmatch(r"BASE=python:3\.\d+-slim", first.rest)
        assert {step.rest.split()[0] for step in steps(file) if step.word == "FROM"} == {"${BASE}"}

    def test_nothing_is_fetched_by_hand(self, file: Path) -> None:
        assert "ADD" not in {step.word for step in steps(file)}
        assert not re.search(
            r"https?:|\bcurl\b|\bwget\b|git clone|--index-url|--extra-index", file.read_text()
        )

    def test_every_package_comes_with_a_pin(self, file: Path) -> None:
        installs = [
            call
            for step in steps(file)
            if step.word == "RUN"
            for call in re.split(r"&&|;", step.rest)
            if re.search(r"\bpip\b.* install\b|\bpip install\b", call)
        ]
        assert installs or file.parent.name == "runtime"
        for call in installs:
            # Or the list itself, and nothing beside it.
            assert "-c constraints.txt" in call or call.endswith(" --no-deps -r constraints.txt"), call
            assert "--no-cache-dir" in call, call

    def test_a_user_that_is_not_root_and_needs_no_name(self, file: Path) -> None:
        users = [step.rest for step in last_stage(file) if step.word == "USER"]
        assert users == ["65532:65532"]

    def test_words_are_not_given_to_a_shell(self, file: Path) -> None:
        # A shell as process 1 would not pass the kubelet's signal on.
        for step in last_stage(file):
            if step.word in ("ENTRYPOINT", "CMD"):
                assert step.rest.startswith("["), step

    def test_no_bytecode_is_written_into_a_read_only_root(self, file: Path) -> None:
        assert any("PYTHONDONTWRITEBYTECODE=1" in s.rest for s in last_stage(file) if s.word == "ENV")

    def test_what_it_copies_is_there_and_reaches_the_builder(self, file: Path) -> None:
        let_in = {
            line.removeprefix("!")
            for line in (ROOT / ".dockerignore").read_text().splitlines()
            if line.startswith("!")
        }
        for step in steps(file):
            if step.word == "COPY" and "--from=" not in step.rest:
                for source in [word for word in step.rest.split() if not word.startswith("--")][:-1]:
                    assert (ROOT / source).exists(), source
                    assert source.split("/")[0] in let_in, source


def test_what_pip_is_asked_for_by_name_is_pinned() -> None:
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {"setuptools", "mypy"} <= pinned


def test_the_engine_for_cpus_is_stock_and_of_the_version_that_plait_hooks() -> None:
    file = ROOT / "images/engine-cpu/Dockerfile"
    assert {step.rest for step in steps(file) if step.word == "COPY"} == {
        "constraints.txt ./",
        "--from=build /opt/venv /opt/venv",
    }
    pinned = set((ROOT / "constraints.txt").read_text().splitlines())
    assert {f"sglang=={version}" for version in ENGINE_VERSIONS} & pinned
    assert "mooncake-transfer-engine-non-cuda" in {line.split("==")[0] for line in pinned}


def test_the_compiled_router_and_the_checkout_are_one_source() -> None:
    assert "tools/router_wheel.sh" in (ROOT / "images/router/Dockerfile").read_text()


def test_the_injector_runs_where_the_base_image_has_its_python() -> None:
    first = (ROOT / "images/runtime/inject.py").read_text().splitlines()[0]
    assert first == "#!/usr/local/bin/python3"
