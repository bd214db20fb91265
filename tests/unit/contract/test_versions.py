import importlib.metadata

import pytest

from plait.contract import versions


def test_versions_are_those_of_the_installation() -> None:
    assert versions.plait_version() == importlib.metadata.version("plait")


def test_no_engine_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert versions.installed_engine() is None


def test_installed_engine_is_what_the_metadata_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name}-9")
    assert versions.installed_engine() == "sglang-9"
