"""Stock engine flags -> ServerArgs field names and values, without importing the engine.

As the engine's own parser reads them (unambiguous abbreviations too: `--tp` is `--tp-size`), but stricter
where that one would hide a mistake: no flag may be given twice with two values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from plait.contract.validate.engine_args import KNOWN_VERSIONS, EngineArgs, Option, engine_args
from plait.contract.violation import ContractError, Violation, nearest

_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_IEC = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def parse_engine_argv(argv: Sequence[str], *, version: str = KNOWN_VERSIONS[-1]) -> dict[str, object]:
    """Fields that `argv` (`--flag value`, `--flag=value`) sets, by ServerArgs name; others are at default.

    Raises ContractError with every unknown flag (and the nearest known one), missing or malformed value
    and contradiction. The engine's `--config FILE` is refused: what it holds could not be checked here.
    """
    values, bad = read_engine_argv(argv, version=version)
    if bad:
        raise ContractError(bad)
    return values


def read_engine_argv(
    argv: Sequence[str], *, version: str = KNOWN_VERSIONS[-1]
) -> tuple[dict[str, object], list[Violation]]:
    """As `parse_engine_argv`, but returns what could be read beside the violations of what could not."""
    return _Parser(engine_args(version), argv).parse()


def field_of(key: str, table: EngineArgs) -> str | None:
    """The ServerArgs field that `key` names: a field, or a flag with or without its dashes."""
    if key in table.fields:
        return key
    dashed = key if key.startswith("-") else "--" + key.replace("_", "-")
    option = table.by_flag.get(dashed)
    if option is None or option.form not in ("value", "true", "bool") or dashed.startswith("--no-"):
        return None
    return option.dest if option.dest in table.fields else None


class _Parser:
    def __init__(self, table: EngineArgs, argv: Sequence[str]) -> None:
        self.table, self.rest = table, list(argv)
        self.values: dict[str, object] = {}
        self.set_by: dict[str, str] = {}
        self.bad: list[Violation] = []

    def parse(self) -> tuple[dict[str, object], list[Violation]]:
        while self.rest:
            self._take(self.rest.pop(0))
        return self.values, self.bad

    def _take(self, word: str) -> None:
        if not word.startswith("-"):
            self._refuse(word, None, "stands alone: no flag takes this value", "remove it")
            return
        flag, equals, text = word.partition("=")
        attached = text if equals else None
        option = self._find(flag)
        if option is None:
            self._unknown(flag, self._words(None) if attached is None else [attached])
        elif option.dest == "config":
            self._words(None)
            reason = "a second source of engine flags, which Plait could not check before the start"
            self._refuse(flag, attached, reason, "write the flags on the command line")
        elif option.form == "value":
            self._store_value(flag, option, [attached] if attached is not None else self._words(option))
        elif attached is not None:
            self._refuse(flag, attached, "is a switch and takes no value", f"write {flag} alone")
        elif option.form != "ignored":
            on: object = option.const if option.form == "const" else True
            # A BooleanOptionalAction lists its --no- twin among its own flags.
            self._store(flag, option, False if option.form == "bool" and flag.startswith("--no-") else on)

    def _find(self, flag: str) -> Option | None:
        known = self.table.by_flag
        if flag in known or not flag.startswith("--"):
            return known.get(flag)
        longer = [name for name in known if name.startswith(flag)]
        return known[longer[0]] if len(longer) == 1 else None

    def _words(self, option: Option | None) -> list[str]:
        """The words after a flag that are its values, taken off the rest."""
        most = None if option is None or option.nargs in ("+", "*") else 1
        taken: list[str] = []
        while self.rest and _is_value(self.rest[0]) and (most is None or len(taken) < most):
            taken.append(self.rest.pop(0))
        return taken

    def _store_value(self, flag: str, option: Option, words: list[str]) -> None:
        if not words and option.nargs not in ("?", "*"):
            self._refuse(flag, None, "needs a value", f"write {flag} VALUE")
            return
        parse = _PARSERS[option.type]
        try:
            parsed = [parse(word) for word in words]
        except ValueError as error:
            self._refuse(flag, " ".join(words), str(error), f"see the engine's help for {flag}")
            return
        if option.nargs in ("+", "*"):
            self._store(flag, option, parsed)
        else:
            self._store(flag, option, parsed[0] if parsed else option.const)

    def _store(self, flag: str, option: Option, value: object) -> None:
        before = self.values.get(option.dest)
        if option.dest in self.values and before != value:
            reason = f"contradicts {self.set_by[option.dest]} {before!r}, given before"
            self._refuse(flag, value, reason, "keep one of the two")
        self.values[option.dest] = value
        self.set_by[option.dest] = flag

    def _unknown(self, flag: str, words: list[str]) -> None:
        longer = [name for name in self.table.by_flag if len(flag) > 2 and name.startswith(flag)]
        close = ", ".join(longer[:5]) or nearest(flag, self.table.by_flag)
        fix = f"did you mean {close}?" if close else "remove it"
        value = " ".join(words) if words else None
        self._refuse(flag, value, f"sglang {self.table.version} has no such flag", fix)

    def _refuse(self, flag: str, value: object, reason: str, fix: str) -> None:
        self.bad.append(Violation(flag, value, reason, fix))


def _is_value(word: str) -> bool:
    # As argparse does it: a negative number is a value, since no flag looks like one.
    return not word.startswith("-") or word == "-" or re.fullmatch(r"-\d+|-\d*\.\d+", word) is not None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("not a number") from None


def _human_int(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", text.strip())
    if not match:
        return _whole(text)
    number, suffix = match.groups()
    if suffix in _SI:
        return int(Decimal(number) * _SI[suffix])
    if "." in number:
        raise ValueError(f"{suffix} takes no decimals")
    return int(number) * _IEC[suffix]


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError("not JSON") from None


_PARSERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": _whole,
    "float": _number,
    "human_int": _human_int,
    "nullable_str": lambda text: None if text in ("", "None") else text,
    "json": _json,
    "json_list": _json,
    "cuda_graph_config": _json,
}
