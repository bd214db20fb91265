"""A table of environment variables: how a frozen dataclass of settings is read, written out and told.

Nothing here knows a setting: `plait.contract.settings` is the table, `about(...)` the metadata of its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any, NamedTuple

from plait.contract.setting_kinds import MAY_BE_EMPTY, BadValueError, Kind
from plait.contract.violation import ContractError, Violation, nearest

PREFIX = "PLAIT_"


class SettingsError(ContractError):
    """Every unknown name and bad value of the environment at once."""


class SettingRow(NamedTuple):
    """One variable, in words, for `plait doctor` and the docs. `value` is the one in force."""

    name: str
    kind: str
    default: str
    allowed: str
    does: str
    cost: str
    value: str


def about(kind: Kind, *, does: str, cost: str) -> dict[str, object]:
    """Metadata of one field: how its text is read, and what it does and costs, in words."""
    return {"kind": kind, "does": does, "cost": cost}


def variable(field_name: str) -> str:
    """The environment variable of a field of `Settings`."""
    return PREFIX + field_name.upper()


def read(table: type[Any], source: Mapping[str, str]) -> dict[str, Any]:
    """Values of the fields of `table` that `source` sets, by field name.

    Raises SettingsError with every unknown PLAIT_* name and bad value at once.
    """
    known = {variable(f.name): f for f in fields(table)}
    bad: list[Violation] = []
    values: dict[str, Any] = {}
    for name in sorted(n for n in source if n.startswith(PREFIX)):
        text = source[name]
        if name not in known:
            bad.append(_unknown(name, text, known))
            continue
        kind = _kind(known[name])
        if not text and kind not in MAY_BE_EMPTY:
            bad.append(Violation(name, text, "is set but empty", f"unset it, or use one of: {kind.allowed}"))
            continue
        try:
            values[known[name].name] = kind.parse(text)
        except BadValueError as error:
            bad.append(Violation(name, text, error.reason, error.fix))
    if bad:
        raise SettingsError(bad)
    return values


def written(settings: Any) -> dict[str, str]:
    """The variables that give these settings to another process; those at their default are left out."""
    return {
        variable(f.name): _text(getattr(settings, f.name))
        for f in fields(settings)
        if getattr(settings, f.name) != f.default
    }


def rows(settings: Any) -> list[SettingRow]:
    """Every variable with its value in force, in the order of the table."""
    return [
        SettingRow(
            name=variable(f.name),
            kind=_kind(f).name,
            default=_text(f.default),
            allowed=_kind(f).allowed,
            does=f.metadata["does"],
            cost=f.metadata["cost"],
            value=_text(getattr(settings, f.name)),
        )
        for f in fields(settings)
    ]


def _kind(of: Field[Any]) -> Kind:
    kind: Kind = of.metadata["kind"]
    return kind


def _unknown(name: str, text: str, known: Mapping[str, object]) -> Violation:
    close = nearest(name, known)
    fix = f"did you mean {close}?" if close else f"unset it; known names: {', '.join(known)}"
    return Violation(name, text, "no setting of Plait has this name", fix)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
