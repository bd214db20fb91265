#!/usr/local/bin/python3
"""`inject VOLUME`: the runtime's tree as VOLUME/site, whole or not at all. Entry of the runtime image.

Run in an init container as any user, with a read-only root: it needs write rights on VOLUME alone. Run again
(the kubelet may), it finds its own tree there and leaves it; another one is replaced. Exit status 0: it is
there; 1: it is not, with the reason on stderr; 2: wrong usage. Needs Python's standard library alone.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

SITE, MARKER = "site", "plait-tree.json"


def inject(tree: Path, volume: Path) -> str:
    """Put a copy of `tree` into `volume`; what was done, in words. Raises OSError."""
    marker = (tree / MARKER).read_bytes()
    target = volume / SITE
    # What an earlier run left half done; a name that begins with a dot is never on a path.
    for left in volume.glob(f".{SITE}-*"):
        shutil.rmtree(left)
    if (target / MARKER).is_file() and (target / MARKER).read_bytes() == marker:
        return f"{target} is there already"
    part, old = volume / f".{SITE}-new", volume / f".{SITE}-old"
    # Contents and modes, not owners: engines run as another user.
    shutil.copytree(tree, part, copy_function=shutil.copy)
    if target.exists():
        target.rename(old)
    part.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    return f"{target}: {marker.decode().strip()}"


def main(words: list[str]) -> int:
    """The command line; the exit status."""
    if len(words) != 1 or words[0].startswith("-"):
        print("usage: inject VOLUME", file=sys.stderr)
        return 2
    volume = Path(words[0])
    os.umask(0o022)
    try:
        if not volume.is_dir():
            raise NotADirectoryError(20, "is not a folder: mount an emptyDir there", str(volume))
        told = inject(Path(__file__).resolve().parent / SITE, volume)
    except OSError as error:
        print(f"inject: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"inject: {told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
