"""Load the engine's plugins as the engine does, and tell which hooks took; no model, no server.

    PLAIT_LAYOUT=shared python -m plait.engine.rehearsal

The entry point, the filter SGLANG_PLUGINS, every signature and the engine's own applying are all part of
it. Prints `plait-hooks:` and a JSON list of [target, kind, why]; ends as an engine would when one fails.
"""

from __future__ import annotations

import json
from typing import NamedTuple

MARK = "plait-hooks:"


class Hook(NamedTuple):
    """One hook in force."""

    target: str
    kind: str
    why: str


class HookReport(NamedTuple):
    """`trouble` is empty when every hook took; otherwise the message that an engine would end with."""

    hooks: list[Hook]
    trouble: str


def main() -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from plait.engine.state import hooks

    rows = [(each.target.path, each.target.kind.value, each.target.why) for each in hooks]
    print(MARK + json.dumps(rows), flush=True)


def read_report(status: int, out: str, errors: str) -> HookReport:
    """What a rehearsal said, from its exit status and its output."""
    line = next((each for each in out.splitlines() if each.startswith(MARK)), None)
    if status or line is None:
        return HookReport([], _message(errors) or f"ended with status {status} and said nothing")
    hooks = [Hook(*each) for each in json.loads(line.removeprefix(MARK))]
    if not hooks:
        return HookReport([], "the engine did not load the plugin (is it filtered out by SGLANG_PLUGINS?)")
    return HookReport(hooks, "")


def _message(errors: str) -> str:
    """Plait's own message with what follows it, or the last line of a traceback."""
    lines = [line for line in errors.splitlines() if line.strip()]
    at = next((number for number, line in enumerate(lines) if line.startswith("plait: ")), None)
    if at is not None:
        return "\n".join(lines[at:]).removeprefix("plait: ")
    return lines[-1] if lines else ""


if __name__ == "__main__":
    main()
