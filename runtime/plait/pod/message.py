"""Where a container's last words go: stdout, and the file that the kubelet reads them from."""

from __future__ import annotations

import sys
from pathlib import Path

TERMINATION_LOG = Path("/dev/termination-log")


def leave(text: str, file: Path) -> None:
    """Write `text` to stdout and to `file`. Where it cannot be written that is told, and no error."""
    print(text, flush=True)
    try:
        # Never made anew: in a container the kubelet has put it there, and elsewhere /dev is not ours.
        with file.open("r+" if file == TERMINATION_LOG else "w") as out:
            out.truncate()
            out.write(text)
    except OSError as error:
        print(f"plait: {file}: {error.strerror}: the message is on stdout alone", file=sys.stderr, flush=True)
