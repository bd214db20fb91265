"""How the tests start `plait router`: from this checkout, or as another interpreter has it installed."""

from __future__ import annotations

import os
import sys


def router_python() -> tuple[str, ...]:
    """The interpreter that ROUTER_PYTHON names; unset: the one that runs the tests.

    Safe path (-P): the folder that the tests run in holds no part of what the other interpreter runs.
    """
    return (os.environ.get("ROUTER_PYTHON") or sys.executable, "-P")


def router_command() -> tuple[str, ...]:
    """`plait router`."""
    return (*router_python(), "-m", "plait.cli", "router")
