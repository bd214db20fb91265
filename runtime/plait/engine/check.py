"""The refusal before torch: the validator of the contract over a stock command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.contract.layouts import Layout
from plait.contract.settings import Settings
from plait.contract.violation import ContractError
from plait.engine.entry import stop


def refuse_or_pass(flags: Sequence[str], environ: Mapping[str, str]) -> None:
    """Return if an engine may start with `flags`; else end the process with every violation at once."""
    try:
        settings = Settings.from_env(environ)
    except ContractError as error:
        stop(f"the PLAIT_* settings are refused:\n{error}")
    if settings.layout is Layout.OFF:
        return
    plugins = environ.get("SGLANG_PLUGINS", "")
    if plugins and "plait" not in {name.strip() for name in plugins.split(",")}:
        stop(
            f"SGLANG_PLUGINS = {plugins!r} filters the plugin 'plait' out, so this engine would not share "
            "its cache. Fix: add plait to SGLANG_PLUGINS, or unset it"
        )


def refuse_arguments(args: Mapping[str, object]) -> None:
    """Return if an engine may run with these ServerArgs fields; else end the process."""
    del args
