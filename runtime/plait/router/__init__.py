"""The OpenAI-compatible router: pairs a prefill group with a decode engine for each request.

Stands alone on `plait.contract` and `plait.telemetry`: no torch, no engine. Imports nothing heavy until
`serve` is called, so that the command line stays quick.
"""

from __future__ import annotations

from plait.router.config import ConfigError, Deadlines, PrefillTarget, RouterConfig

__all__ = ["ConfigError", "Deadlines", "PrefillTarget", "RouterConfig", "serve"]


def serve(config: RouterConfig) -> None:
    """Run the router until SIGTERM or SIGINT, then finish what is under way (`deadlines.drain`) and return.

    Raises ConfigError, before anything is started, where a port cannot be had.
    """
    if config.processes > 1:
        from plait.router.processes.supervisor import run
    else:
        from plait.router.server import run

    run(config)
