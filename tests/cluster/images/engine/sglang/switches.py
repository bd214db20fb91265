"""How a stub engine is to misbehave: variables STUB_*, set by a test as any variable of an engine's."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Switches:
    """A variable STUB_X is the field `x`; an unknown one ends the engine, so that no test runs without it.

    `start_s`: seconds until anything listens, as a model that loads. `never_ready`: 1: /health stays 503.
    `crash_after_s`: ends with status 1 so long after the start (0: at once). `wire_hash`, `group_hash`: what
    the status says in place of the true ones. `tokens`: capacity that the status says. `token_s`: pause
    between two tokens of an answer. `hooks`: missing: a rehearsal fails. `status`: off: the status is not
    served, as by an engine without the plugin. `busy`: 1: it says that it has a request, always.
    """

    start_s: float = 0.0
    never_ready: bool = False
    crash_after_s: float | None = None
    wire_hash: str = ""
    group_hash: str = ""
    tokens: int = 0
    token_s: float = 0.01
    hooks: str = ""
    status: str = ""
    busy: bool = False

    @classmethod
    def from_env(cls) -> Switches:
        """Read STUB_*. Raises SystemExit for an unknown name or a bad value."""
        kinds = {field.name: str(field.type) for field in fields(cls)}
        told: dict[str, object] = {}
        for variable, text in os.environ.items():
            if not variable.startswith("STUB_"):
                continue
            name = variable.removeprefix("STUB_").lower()
            if name not in kinds:
                raise SystemExit(f"stub engine: {variable}: no such switch; known: {', '.join(kinds)}")
            try:
                told[name] = _parse(kinds[name], text)
            except ValueError:
                raise SystemExit(f"stub engine: {variable}={text!r}: not a {kinds[name]}") from None
        return cls(**told)  # type: ignore[arg-type]


def _parse(kind: str, text: str) -> object:
    if kind == "str":
        return text
    if kind == "bool":
        if text not in ("0", "1"):
            raise ValueError(text)
        return text == "1"
    return int(text) if kind == "int" else float(text)
