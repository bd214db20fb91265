"""`cached_file`, as the engine's start and an inspection use it."""

from __future__ import annotations

from pathlib import Path

HUB = Path("/opt/hub")


def cached_file(repository: str, name: str, *, revision: str | None = None) -> str:
    """Path of a file of `repository` in the image's own hub. Raises OSError where it has none."""
    file = HUB / repository / name
    if not file.is_file() or revision not in (None, "main"):
        raise OSError(f"{repository} is not a repository of this image's hub, or has no revision {revision}")
    return str(file)
