"""The one table of PLAIT_* environment variables. Each row is a field of `Settings`, with what it costs.

A variable `PLAIT_X` is the field `x`. Unknown PLAIT_* names and bad values are refused together, never
ignored: a misspelt switch that silently did nothing would make its user believe a result.
`python -m plait.contract.settings` prints docs/settings.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from plait.contract.layouts import Layout, Split
from plait.contract.setting_kinds import (
    FAULT,
    FOLDER,
    MAY_BE_EMPTY,
    SWITCH,
    TOKENS,
    BadValueError,
    Fault,
    Kind,
    Owners,
    choice,
    seconds,
)
from plait.contract.violation import ContractError, Violation, nearest

PREFIX = "PLAIT_"
_TOKEN_SPLITS = dict.fromkeys(
    ("token-round-robin", "round-robin", "round-robin-split", "token-interleave"),
    "token round-robin makes every rank compute a part of every page, so that no rank could own one",
)


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


def _about(kind: Kind, *, does: str, cost: str) -> dict[str, object]:
    return {"kind": kind, "does": does, "cost": cost}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The PLAIT_* settings of one process. Build it with `Settings.from_env`."""

    layout: Layout = field(
        default=Layout.OFF,
        metadata=_about(
            choice(Layout),
            does="Where pages live. off: the plugin is inert. plain: stock storage with Plait's contract, "
            "transfer and status (decode). replicated: Plait's split and allocator, every rank "
            "keeps all pages (the reference). shared: each rank keeps the pages it owns.",
            cost="off: none. shared: one gather per layer, hidden behind compute; two scratch slots.",
        ),
    )
    split: Split = field(
        default=Split.PAGE_INTERLEAVE,
        metadata=_about(
            choice(Split, refused=_TOKEN_SPLITS),
            does="Which rank the page allocator prefers for the next page of a sequence; owners compute "
            "their pages.",
            cost="None by itself; it decides how evenly ranks are loaded.",
        ),
    )
    cpu: bool = field(
        default=False,
        metadata=_about(
            SWITCH,
            does="Supply what stock SGLang lacks on a machine without a GPU. Refused where CUDA is present.",
            cost="Slow reference kernels: for tests and the demo.",
        ),
    )
    prefetch: bool = field(
        default=True,
        metadata=_about(
            SWITCH,
            does="Fetch the prefix part of the next layer's dense view one layer ahead.",
            cost="None: it takes no memory of its own. Off, every layer waits for its gather.",
        ),
    )
    scratch_tokens: int = field(
        default=0,
        metadata=_about(
            TOKENS,
            does="Tokens that one dense scratch slot holds: no batch's prefixes and chunks together exceed "
            "it. 0: planned from the memory.",
            cost="Two slots of so many rows of one layer, on each rank.",
        ),
    )
    state_dir: Path | None = field(
        default=None,
        metadata=_about(
            FOLDER,
            does="Folder in which the ranks of an engine leave their status for GET /plait/status. Empty: "
            "a folder of the engine's own under the system's temporary folder.",
            cost="One small file per rank, renewed every PLAIT_STATUS_INTERVAL_S.",
        ),
    )
    status_interval_s: float = field(
        default=0.2,
        metadata=_about(
            seconds(least=0.01, most=60),
            does="How often a rank renews its status.",
            cost="One small file write per interval and rank.",
        ),
    )
    transfer_timeout_s: float = field(
        default=120.0,
        metadata=_about(
            seconds(least=0.1, most=86400),
            does="How long a transfer from prefill to decode may take before its room is failed and its "
            "pages are released.",
            cost="None.",
        ),
    )
    integrity: bool = field(
        default=True,
        metadata=_about(
            SWITCH,
            does="Run the page accounting check when the engine is idle: every page is free, owned by the "
            "radix tree, held by a request, or in flight.",
            cost="Milliseconds of host time, only when idle.",
        ),
    )
    debug_checks: bool = field(
        default=False,
        metadata=_about(
            SWITCH,
            does="Check plans and views in every forward (owners, positions, bounds) and stop at the "
            "first fault.",
            cost="Device syncs in every forward: not for production.",
        ),
    )
    nvtx: bool = field(
        default=False,
        metadata=_about(
            SWITCH,
            does="NVTX ranges around gathers, splits and transfers, for a profiler.",
            cost="About a microsecond per range.",
        ),
    )
    test_owners: Owners = field(
        default=Owners.OFF,
        metadata=_about(
            choice(Owners),
            does="Tests only. random: a pseudo-random owner for each new page, equal on all ranks.",
            cost="Uneven load and short runs.",
        ),
    )
    test_fault: Fault | None = field(
        default=None,
        metadata=_about(
            FAULT,
            does="Tests only. Put a named fault in on purpose, to show that the tests notice it.",
            cost="Wrong answers.",
        ),
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the PLAIT_* variables of `environ` (default: this process's).

        Raises SettingsError with every unknown name and bad value at once.
        """
        source = os.environ if environ is None else environ
        known = {variable(f.name): f for f in fields(cls)}
        bad: list[Violation] = []
        values: dict[str, Any] = {}
        for name in sorted(n for n in source if n.startswith(PREFIX)):
            text = source[name]
            if name not in known:
                bad.append(_unknown(name, text, known))
                continue
            kind: Kind = known[name].metadata["kind"]
            if not text and kind not in MAY_BE_EMPTY:
                bad.append(
                    Violation(name, text, "is set but empty", f"unset it, or use one of: {kind.allowed}")
                )
                continue
            try:
                values[known[name].name] = kind.parse(text)
            except BadValueError as error:
                bad.append(Violation(name, text, error.reason, error.fix))
        if bad:
            raise SettingsError(bad)
        return cls(**values)

    def to_env(self) -> dict[str, str]:
        """The variables that give these settings to another process; those at their default are left out."""
        return {
            variable(f.name): _text(getattr(self, f.name))
            for f in fields(self)
            if getattr(self, f.name) != f.default
        }

    def describe(self) -> list[SettingRow]:
        """Every variable with its value in force, in the order of the table."""
        rows = []
        for f in fields(self):
            kind: Kind = f.metadata["kind"]
            rows.append(
                SettingRow(
                    name=variable(f.name),
                    kind=kind.name,
                    default=_text(f.default),
                    allowed=kind.allowed,
                    does=f.metadata["does"],
                    cost=f.metadata["cost"],
                    value=_text(getattr(self, f.name)),
                )
            )
        return rows


def variable(field_name: str) -> str:
    """The environment variable of a field of `Settings`."""
    return PREFIX + field_name.upper()


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


def markdown() -> str:
    """The text of docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Environment variables that an engine with Plait reads at its start. This page is made from the",
        "table in `plait.contract.settings` by `python -m plait.contract.settings > docs/settings.md`.",
        "",
        "An unknown `PLAIT_*` name or a bad value ends the start with a message that lists all of them.",
        "What is off costs nothing.",
        "",
        "| variable | default | allowed | what it does | cost when on |",
        "|---|---|---|---|---|",
    ]
    for row in Settings().describe():
        default = f"`{row.default}`" if row.default else "(empty)"
        lines.append(f"| `{row.name}` | {default} | {row.allowed} | {row.does} | {row.cost} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
