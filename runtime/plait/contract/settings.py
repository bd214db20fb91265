"""The one table of PLAIT_* environment variables. Each row is a field of `Settings`, with what it costs.

A variable `PLAIT_X` is the field `x`. Unknown PLAIT_* names and bad values are refused together, never
ignored: a misspelt switch that silently did nothing would make its user believe a result.
`python -m plait.contract.settings` prints docs/settings.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plait.contract.layouts import Layout, Split
from plait.contract.setting_kinds import (
    FAULT,
    FILE,
    FOLDER,
    SWITCH,
    TOKENS,
    Fault,
    GatherPath,
    Kernels,
    Owners,
    PeerAccess,
    choice,
    seconds,
)
from plait.contract.setting_table import (
    PREFIX,
    SettingRow,
    SettingsError,
    about,
    read,
    rows,
    variable,
    written,
)

__all__ = ["PREFIX", "SettingRow", "Settings", "SettingsError", "markdown", "variable"]

_TOKEN_SPLITS = dict.fromkeys(
    ("token-round-robin", "round-robin", "round-robin-split", "token-interleave"),
    "token round-robin makes every rank compute a part of every page, so that no rank could own one",
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The PLAIT_* settings of one process. Build it with `Settings.from_env`."""

    layout: Layout = field(
        default=Layout.OFF,
        metadata=about(
            choice(Layout),
            does="Where pages live. off: the plugin is inert. plain: stock storage with Plait's contract, "
            "transfer and status (decode). replicated: Plait's split and allocator, every rank "
            "keeps all pages (the reference). shared: each rank keeps the pages it owns.",
            cost="off: none. shared: one gather per layer, hidden behind compute; two scratch slots.",
        ),
    )
    split: Split = field(
        default=Split.PAGE_INTERLEAVE,
        metadata=about(
            choice(Split, refused=_TOKEN_SPLITS),
            does="Which rank the page allocator prefers for the next page of a sequence; owners compute "
            "their pages.",
            cost="None by itself; it decides how evenly ranks are loaded.",
        ),
    )
    cpu: bool = field(
        default=False,
        metadata=about(
            SWITCH,
            does="Supply what stock SGLang lacks on a machine without a GPU. Refused where CUDA is present.",
            cost="Slow reference kernels: for tests and the demo.",
        ),
    )
    prefetch: bool = field(
        default=True,
        metadata=about(
            SWITCH,
            does="Fetch the prefix part of the next layer's dense view one layer ahead.",
            cost="None: it takes no memory of its own. Off, every layer waits for its gather.",
        ),
    )
    peer_access: PeerAccess = field(
        default=PeerAccess.AUTO,
        metadata=about(
            choice(PeerAccess),
            does="Whether the ranks of a group map each other's pools. auto: where they can; else they "
            "gather by collectives, with one line in the log and a metric. required: where they cannot, the "
            "engine does not start. off: collectives.",
            cost="Address space. off: a gather costs more time, and memory for what it sends and receives.",
        ),
    )
    peer_timeout_s: float = field(
        default=240.0,
        metadata=about(
            seconds(least=0.1, most=3600),
            does="How long a rank waits for the others, when they map each other's memory at the start and "
            "at the barriers of a forward. Then it names those that are missing, and the group stops. (One "
            "whose process has ended is noticed at once.)",
            cost="None. Shorter than what kernels take to compile at a first request, which not all ranks "
            "need: the group stops.",
        ),
    )
    gather_path: GatherPath = field(
        default=GatherPath.AUTO,
        metadata=about(
            choice(GatherPath),
            does="How the prefix part of the dense view is fetched. auto: the cheapest way for each batch. "
            "copy: copy engine. pull: kernel. collective: all-gather. peer-view: only the index is fetched, "
            "attention reads the owners' rows (not run on a GPU yet, so never by itself). One that is forced "
            "is for measurements.",
            cost="auto: microseconds of host time for each batch. Forced: what auto would have saved.",
        ),
    )
    gather_costs: Path | None = field(
        default=None,
        metadata=about(
            FILE,
            does="Table of costs (JSON) that the choice of ways goes by; all ranks take the first rank's. "
            "Empty: measured at the start.",
            cost="None; it saves the measurement, milliseconds of the start.",
        ),
    )
    gather_log: bool = field(
        default=False,
        metadata=about(
            SWITCH,
            does="One line in the log for each batch: its pages, runs and fragments, which way, and why.",
            cost="A line for each batch and rank: not for production.",
        ),
    )
    kernels: Kernels = field(
        default=Kernels.AUTO,
        metadata=about(
            choice(Kernels),
            does="auto: each Triton kernel that equals its torch reference at the start, on all ranks; torch "
            "for the rest, with one warning and a metric. torch: the references alone.",
            cost="auto: seconds of a first start, while kernels compile. torch: slow.",
        ),
    )
    narrow_tail: bool = field(
        default=True,
        metadata=about(
            SWITCH,
            does="At the end of prefill collect only the hidden states that are used, the last token's of "
            "each request; all of them where a request asks for them or for the prompt's log-probabilities.",
            cost="None. Off, the hidden states of all tokens travel to all ranks.",
        ),
    )
    scratch_tokens: int = field(
        default=0,
        metadata=about(
            TOKENS,
            does="Tokens that one dense scratch slot holds: no batch's prefixes and chunks together exceed "
            "it. 0: planned from the memory.",
            cost="Two slots of so many rows of one layer, on each rank.",
        ),
    )
    state_dir: Path | None = field(
        default=None,
        metadata=about(
            FOLDER,
            does="Folder in which the ranks of an engine leave their status for GET /plait/status. Empty: "
            "a folder of the engine's own under the system's temporary folder.",
            cost="One small file per rank, renewed every PLAIT_STATUS_INTERVAL_S.",
        ),
    )
    status_interval_s: float = field(
        default=0.2,
        metadata=about(
            seconds(least=0.01, most=60),
            does="How often a rank renews its status.",
            cost="One small file write per interval and rank.",
        ),
    )
    transfer_timeout_s: float = field(
        default=120.0,
        metadata=about(
            seconds(least=0.1, most=86400),
            does="How long a transfer from prefill to decode may take before its room is failed and its "
            "pages are released.",
            cost="None.",
        ),
    )
    integrity: bool = field(
        default=True,
        metadata=about(
            SWITCH,
            does="Run the page accounting check when the engine is idle: every page is free, owned by the "
            "radix tree, held by a request, or in flight.",
            cost="Milliseconds of host time, only when idle.",
        ),
    )
    debug_checks: bool = field(
        default=False,
        metadata=about(
            SWITCH,
            does="Check plans and views in every forward (owners, positions, bounds) and stop at the "
            "first fault.",
            cost="Device syncs in every forward: not for production.",
        ),
    )
    nvtx: bool = field(
        default=False,
        metadata=about(
            SWITCH,
            does="NVTX ranges around gathers, splits and transfers, for a profiler.",
            cost="About a microsecond per range.",
        ),
    )
    test_owners: Owners = field(
        default=Owners.OFF,
        metadata=about(
            choice(Owners),
            does="Tests only. random: a pseudo-random owner for each new page, equal on all ranks.",
            cost="Uneven load and short runs.",
        ),
    )
    test_fault: Fault | None = field(
        default=None,
        metadata=about(
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
        return cls(**read(cls, os.environ if environ is None else environ))

    def to_env(self) -> dict[str, str]:
        """The variables that give these settings to another process; those at their default are left out."""
        return written(self)

    def describe(self) -> list[SettingRow]:
        """Every variable with its value in force, in the order of the table."""
        return rows(self)


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
