"""Engine arguments by field -> flags of the command line: the way back from `validate.argv`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from plait.contract.validate.argv import field_of
from plait.contract.validate.engine_args import EngineArgs, Option
from plait.contract.violation import ContractError, Violation, nearest


def by_field(args: Mapping[str, object], *, table: EngineArgs, path: str = "args") -> dict[str, object]:
    """`args` with ServerArgs fields as keys, where users may write fields or flags.

    Raises ContractError naming `<path>.<key>` for each key that the engine does not have.
    """
    told: dict[str, object] = {}
    bad: list[Violation] = []
    for key, value in args.items():
        field = field_of(key, table)
        if field is None:
            close = nearest(key, table.fields)
            fix = f"did you mean {close}?" if close else "remove it"
            bad.append(Violation(f"{path}.{key}", value, f"sglang {table.version} has no such argument", fix))
        else:
            told[field] = value
    if bad:
        raise ContractError(bad)
    return told


def flags_of(args: Mapping[str, object], *, table: EngineArgs, path: str = "args") -> list[str]:
    """The flags that set `args` (ServerArgs fields), in the order of the fields' names.

    None, and False for a switch, are what the engine does without the flag: they give none.
    Raises ContractError naming `<path>.<field>` for a field without a flag, or a value no flag can carry.
    """
    flags: list[str] = []
    bad: list[Violation] = []
    for field in sorted(args):
        try:
            flags += _flag(field, args[field], table)
        except ValueError as error:
            fix = "see the engine's help for it"
            bad.append(Violation(f"{path}.{field}", args[field], str(error), fix))
    if bad:
        raise ContractError(bad)
    return flags


def without(flags: Sequence[str], fields: Mapping[str, object], *, table: EngineArgs) -> list[str]:
    """`flags` (each spelt as the engine lists it) without those that set one of `fields`.

    The engine's own parser would take the last of two, but Plait refuses a flag that is given twice.
    """
    kept: list[str] = []
    for words in _groups(flags):
        option = table.by_flag.get(words[0])
        if option is None or option.dest not in fields:
            kept += words
    return kept


def _groups(flags: Sequence[str]) -> Iterator[list[str]]:
    words: list[str] = []
    for word in flags:
        if word.startswith("--") and words:
            yield words
            words = []
        words.append(word)
    if words:
        yield words


def _flag(field: str, value: object, table: EngineArgs) -> list[str]:
    if value is None:
        return []
    option = table.by_field.get(field)
    if option is None or option.form not in ("value", "true", "bool"):
        raise ValueError("the engine has no flag for it")
    return _switch(option, value) if option.form != "value" else _valued(option, value)


def _switch(option: Option, value: object) -> list[str]:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    if option.form == "true":
        return [option.flags[0]] if value else []
    return [next(flag for flag in option.flags if flag.startswith("--no-") is not value)]


def _valued(option: Option, value: object) -> list[str]:
    flag = option.flags[0]
    if option.type in ("json", "json_list", "cuda_graph_config"):
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
        return [f"{flag}={text}"]
    if option.nargs in ("+", "*"):
        if not isinstance(value, list | tuple):
            raise ValueError("must be a list")
        words = [_word(each) for each in value]
        if any(word.startswith("--") for word in words):
            raise ValueError("a value in a list may not begin with dashes")
        return [flag, *words]
    text = _word(value)
    # A value that looks like a flag must be attached to its own.
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _word(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a text or a number")
    return str(value)
