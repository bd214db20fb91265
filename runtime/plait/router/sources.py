"""The source of workers that a configuration names."""

from __future__ import annotations

from plait.router.config import RouterConfig
from plait.router.discovery.source import Source


def source_of(config: RouterConfig) -> Source:
    """Flags, a file, or Kubernetes. Raises ConfigError. Imports only what is chosen."""
    if config.kubernetes is not None:
        from plait.router.discovery.kubernetes.access import find_access
        from plait.router.discovery.kubernetes.source import KubernetesSource

        return KubernetesSource(config.kubernetes, find_access(config.kubernetes))
    if config.workers_file:
        from plait.router.discovery.file import FileSource

        return FileSource(config.workers_file)
    from plait.router.discovery.static import StaticSource
    from plait.router.discovery.target import Target, distinct

    return StaticSource(
        distinct(
            [
                *(Target.prefill(t.url, bootstrap_port=t.bootstrap_port) for t in config.prefill),
                *(Target.decode(url) for url in config.decode),
            ]
        )
    )
