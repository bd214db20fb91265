"""Is the engine in this image one that Plait was made for?"""

from __future__ import annotations

from plait.contract.verdict import CheckResult
from plait.contract.versions import ENGINE_VERSIONS, installed_engine
from plait.pod.asked import Asked
from plait.pod.checks.result import bad, good

NAME = "engine"


def check(asked: Asked) -> list[CheckResult]:
    """Version of the installed sglang, from its metadata."""
    version = installed_engine()
    if version in ENGINE_VERSIONS:
        return [good(NAME, version)]
    known = ", ".join(ENGINE_VERSIONS)
    reason = (
        "no sglang is installed in this image" if version is None else "Plait's hooks were not made for it"
    )
    return [
        bad(NAME, version or "none", reason=reason, fix=f"an image of stock SGLang {known} (engine.image)")
    ]
