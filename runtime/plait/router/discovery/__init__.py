"""Where workers come from: flags, a file, or Kubernetes. Each source hands over whole lists of targets.

Importing this package is cheap; aiohttp, pydantic and the YAML parser are loaded by the source that needs
them, when it starts.
"""

from __future__ import annotations

from plait.router.discovery.source import Source, Take
from plait.router.discovery.target import Target, Targets

__all__ = ["Source", "Take", "Target", "Targets"]
