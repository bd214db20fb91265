"""Load the engine's plugins as the engine does, and tell which hooks took; no model, no server.

    PLAIT_LAYOUT=shared python -m plait.engine.rehearsal

The entry point, the filter SGLANG_PLUGINS, every signature and the engine's own applying are all part of
it. Prints `plait-hooks:` and a JSON list of [target, kind, why]; ends as an engine would when one fails.
"""

from __future__ import annotations

import json

MARK = "plait-hooks:"


def main() -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from plait.engine.state import hooks

    rows = [(each.target.path, each.target.kind.value, each.target.why) for each in hooks]
    print(MARK + json.dumps(rows), flush=True)


if __name__ == "__main__":
    main()
