"""How the text of a PLAIT_* variable is read: one `Kind` a form, with the words for what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from plait.contract.layouts import PAGE_SIZE
from plait.contract.violation import nearest


class Fault(NamedTuple):
    """A fault put in on purpose (negative controls): its name, and an argument that the fault understands."""

    name: str
    arg: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.arg}" if self.arg else self.name


class Owners(StrEnum):
    """Who owns new pages: the split's lanes, or a pseudo-random rank per page (equal on all ranks)."""

    OFF = "off"
    RANDOM = "random"


class PeerAccess(StrEnum):
    """Whether the ranks of a group map each other's memory."""

    AUTO = "auto"
    """Where they can; else collectives, on all ranks."""
    REQUIRED = "required"
    OFF = "off"


class GatherPath(StrEnum):
    """How the prefix part of the dense view is fetched."""

    AUTO = "auto"
    """As the costs say, for each batch."""
    COPY = "copy"
    """Runs by the copy engine, fragments by the kernel."""
    PULL = "pull"
    """All by the kernel."""
    COLLECTIVE = "collective"
    PEER_VIEW = "peer-view"
    """Not fetched: attention reads the owners' pages."""

    @property
    def needs_peers(self) -> bool:
        """Whether it reads memory that the ranks have mapped."""
        return self in (GatherPath.COPY, GatherPath.PULL, GatherPath.PEER_VIEW)


class Kernels(StrEnum):
    """Which implementations of kernels are used."""

    AUTO = "auto"
    TORCH = "torch"


class BadValueError(ValueError):
    """A value that does not parse: reason and fix."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.reason, self.fix = reason, fix


class Kind(NamedTuple):
    """How a variable's text is read, and how that is told to the user."""

    name: str
    allowed: str
    parse: Callable[[str], object]


def choice(options: type[StrEnum], *, refused: Mapping[str, str] | None = None) -> Kind:
    """One of `options`. `refused`: names known elsewhere, and why they are not allowed here."""
    names = [option.value for option in options]

    def parse(text: str) -> StrEnum:
        if text not in names:
            reason = (refused or {}).get(text, "not one of the allowed values")
            close = None if text in (refused or {}) else nearest(text, names)
            raise BadValueError(reason, close or f"one of {', '.join(names)}")
        return options(text)

    return Kind("choice", ", ".join(names), parse)


def _parse_switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise BadValueError("a switch is 0 or 1", "1 to turn it on, 0 to turn it off")
    return text == "1"


def _parse_tokens(text: str) -> int:
    fix = f"0 (planned from the memory) or a positive multiple of {PAGE_SIZE}"
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise BadValueError("not a whole number of tokens", fix)
    if int(text) % PAGE_SIZE:
        raise BadValueError(f"scratch is counted in whole pages of {PAGE_SIZE} tokens", fix)
    return int(text)


def seconds(*, least: float, most: float) -> Kind:
    allowed = f"{least:g} to {most:g}"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise BadValueError("not a number of seconds", f"a number of seconds, {allowed}")
        if not least <= value <= most:
            raise BadValueError(f"outside {allowed} seconds", f"a number of seconds, {allowed}")
        return value

    return Kind("seconds", allowed, parse)


def _parse_folder(text: str) -> Path | None:
    if not text:
        return None
    path = Path(text)
    if not path.is_absolute():
        # Rank processes may run with another working directory than the one that was meant.
        raise BadValueError("not an absolute path", "an absolute path that all ranks of the engine can write")
    return path


def _parse_file(text: str) -> Path | None:
    if text and not Path(text).is_absolute():
        raise BadValueError(
            "not an absolute path", "the absolute path of a file that the first rank can read"
        )
    return Path(text) if text else None


def _parse_fault(text: str) -> Fault | None:
    if not text:
        return None
    name, _, arg = text.partition(":")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise BadValueError("not a fault of the form name or name:argument", "leave it empty (no fault)")
    return Fault(name, arg)


SWITCH = Kind("switch", "0, 1", _parse_switch)
TOKENS = Kind("tokens", f"0 or a multiple of {PAGE_SIZE}", _parse_tokens)
FOLDER = Kind("folder", "empty or an absolute path", _parse_folder)
FILE = Kind("file", "empty or an absolute path", _parse_file)
FAULT = Kind("fault", "empty, name or name:argument", _parse_fault)
MAY_BE_EMPTY = (FOLDER, FILE, FAULT)
