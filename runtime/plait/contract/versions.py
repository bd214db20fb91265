"""Versions of the stock engine that Plait has been made for, and Plait's own."""

from __future__ import annotations

import importlib.metadata
from functools import cache

ENGINE_VERSIONS = ("0.5.17",)
"""sglang versions whose hook targets and arguments have been read; the last is the default."""

ANY_VERSION = ""
"""Stands for Plait's version where a deployment brings its own runtime: which one, its image alone knows."""


@cache
def plait_version() -> str:
    """The installed plait's, read once. Raises PackageNotFoundError when it runs from no installation."""
    return importlib.metadata.version("plait")


def installed_engine() -> str | None:
    """The version of the sglang that is installed here, or None. Does not import it."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None
