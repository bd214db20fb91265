"""Files that may be replaced while the router runs: keys, certificates.

Noticed by looking (`os.stat` through symbolic links, as the volumes of Kubernetes Secrets swap one), which
works on every file system; inotify does not on some network ones, and sees a swapped link only by its folder.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

# A file touched less than this long ago may still be being written, and two changes within one tick of the
# file system's clock (4 ms on Linux) look alike: such a file is read at the next look.
_SETTLED_NS = 50_000_000


class Stamp(NamedTuple):
    """What tells one version of a file from the next. `missing`: why it could not be looked at, or empty."""

    path: str
    mtime_ns: int = 0
    size: int = 0
    inode: int = 0
    device: int = 0
    missing: str = ""


class Watch:
    """Whether any of some files, or of the files in some folders, has changed. For one caller and thread.

    Call `changed` from a timer, at least every 0.5 s where a change has to be noticed within one; it costs
    one `stat` (about 2 us on a local disk) a file, and blocks for as long as the file system does.
    """

    def __init__(self, paths: Sequence[str | Path], *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.paths = tuple(Path(path) for path in paths)
        self._clock_ns = clock_ns
        self._seen: tuple[Stamp, ...] | None = None

    def changed(self) -> bool:
        """True the first time, and once for each change that has settled (nothing touched for 50 ms)."""
        now = self._look()
        if now == self._seen:
            return False
        young = any(0 <= self._clock_ns() - each.mtime_ns < _SETTLED_NS for each in now if not each.missing)
        if self._seen is None:
            # The start does not wait; what may be half a file is looked at once more.
            self._seen = () if young else now
            return True
        if young:
            return False
        self._seen = now
        return True

    def still(self) -> bool:
        """Whether all is as the last `changed` saw it; where not, the next `changed` is True.

        Ask after reading: a reader of several files may have got one of before a change and one of after it.
        """
        if not self._seen or self._look() == self._seen:
            return True
        self._seen = ()
        return False

    def _look(self) -> tuple[Stamp, ...]:
        return tuple(_stamp(str(file)) for path in self.paths for file in files_of(path))


def files_of(path: Path) -> list[Path]:
    """`path` itself, or where it is a folder the files in it, by name.

    Left out are folders and names that begin with a dot: the `..data` of a Secret's volume holds the same
    files once more.
    """
    try:
        with os.scandir(path) as entries:
            found = sorted(e.name for e in entries if not e.name.startswith(".") and not e.is_dir())
    except OSError:
        # Not a folder, or none that can be listed: whoever reads `path` is told why.
        return [path]
    return [path / name for name in found]


def read_file(path: Path, *, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Raises OSError (`strerror` says why) also for what is no regular file, which could make a reader wait
    without end, and for one that is too large.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"Larger than {limit} bytes", str(path))
    return content


def _stamp(path: str) -> Stamp:
    try:
        about = os.stat(path)
    except OSError as error:
        return Stamp(path, missing=error.strerror or type(error).__name__)
    return Stamp(path, about.st_mtime_ns, about.st_size, about.st_ino, about.st_dev)
