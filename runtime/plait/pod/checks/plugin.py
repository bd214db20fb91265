"""Will the engine's own loader find the plugin? It goes on without a word when it does not."""

from __future__ import annotations

from plait.contract.verdict import CheckResult
from plait.contract.versions import plait_version
from plait.engine.check import plugin_left_out
from plait.pod.asked import Asked
from plait.pod.checks.result import bad, good

NAME = "plugin"


def check(asked: Asked) -> list[CheckResult]:
    """The entry point is there, and SGLANG_PLUGINS does not leave it out."""
    found = plugin_left_out(asked.environ)
    if not found:
        return [good(NAME, f"plait {plait_version()}")]
    return [bad(NAME, f"{v.field}={v.value or ''}", reason=v.reason, fix=v.fix) for v in found]
