"""The stock engine's arguments as data: fields, defaults and command-line options, one JSON per version.

Made by `tools/engine_args.py` where the engine is installed; read here without it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from plait.contract.versions import ENGINE_VERSIONS

KNOWN_VERSIONS = ENGINE_VERSIONS
"""Engine versions that have an argument table here."""


class Option(NamedTuple):
    """One command-line option. `form`: value, true, bool (with a --no- twin), const or ignored."""

    flags: tuple[str, ...]
    dest: str
    form: str
    type: str = "str"
    nargs: str | None = None
    const: object = None
    instead: str | None = None


@dataclass(frozen=True)
class EngineArgs:
    """Arguments of one engine version."""

    version: str
    required: tuple[str, ...]
    defaults: Mapping[str, Any]
    options: tuple[Option, ...]

    @functools.cached_property
    def by_flag(self) -> dict[str, Option]:
        """Every spelling of every option."""
        return {flag: option for option in self.options for flag in option.flags}

    @functools.cached_property
    def by_field(self) -> dict[str, Option]:
        """The plain option of every field that has one (deprecated spellings only where nothing else is)."""
        found: dict[str, Option] = {}
        for option in sorted(self.options, key=lambda o: o.instead is not None):
            found.setdefault(option.dest, option)
        return found

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field of ServerArgs."""
        return (*self.required, *self.defaults)


@functools.cache
def engine_args(version: str = KNOWN_VERSIONS[-1]) -> EngineArgs:
    """The arguments of engine `version`. Raises KeyError for a version that is not in KNOWN_VERSIONS."""
    if version not in KNOWN_VERSIONS:
        raise KeyError(f"no argument table for engine version {version}; known: {', '.join(KNOWN_VERSIONS)}")
    name = f"engine_args_{version.replace('.', '_')}.json"
    told = json.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
    return EngineArgs(
        version=told["version"],
        required=tuple(told["required"]),
        defaults=told["defaults"],
        options=tuple(Option(**{**entry, "flags": tuple(entry["flags"])}) for entry in told["options"]),
    )
