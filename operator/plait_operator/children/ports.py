"""Ports of the deployment's pods, and their names: the router's discovery looks for the names."""

from __future__ import annotations

from typing import Final

ENGINE: Final = 30000
"""`http` of an engine: requests from routers, health, status, metrics."""
BOOTSTRAP: Final = 8998
"""`bootstrap` of a prefill group: where decode asks for its ranks."""
ROUTER: Final = 8000
"""`http` of a router: clients."""
ADMIN: Final = 8001
"""`admin` of a router: plain HTTP; probes, metrics, figures, and the list of workers."""
