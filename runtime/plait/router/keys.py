"""API keys of clients: read from files of hashes, looked up for each request, read again when they change.

A file is what `key_lines` describes; a folder (a Secret that is mounted as one) holds such files, in which a
line may leave its name out and is then named by its file. No key is stored or logged, only hashes and names.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from plait.router import key_lines
from plait.router.config import ConfigError
from plait.router.errors import RouterError
from plait.router.key_lines import KeyLine
from plait.router.rates import TokenBucket
from plait.router.watched import Watch, files_of, read_file

log = logging.getLogger("plait.router.keys")

_MAX_FILE = 8 << 20
# Faults in one message (and one line of the log); a wrong file can have one in each line.
_TOLD = 100
_HOW = "Send it as 'Authorization: Bearer KEY'."


class Key(NamedTuple):
    """A key that is let in. `limiter` None: at any rate."""

    name: str
    limiter: TokenBucket | None


class RefusedError(RouterError):
    """401 or 429: this client is not let in, now."""


class KeyFileError(ConfigError):
    """Files of keys that cannot be used. `faults`: all of them, each `FILE:LINE: FIELD = VALUE: FIX`."""

    def __init__(self, paths: Sequence[Path], faults: Sequence[str]) -> None:
        told = list(faults[:_TOLD])
        if more := len(faults) - len(told):
            told.append(f"and {more} more")
        super().__init__("api_keys", ", ".join(map(str, paths)), "\n  ".join(("correct:", *told)))
        self.faults = tuple(faults)


class KeyFile:
    """The keys of some files and folders. Raises KeyFileError where they cannot be used at the start.

    `clock` (seconds, never going back) is the limiters'.
    """

    def __init__(self, paths: Sequence[str | Path], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._watch = Watch(paths)
        self._clock = clock
        self._lines: Mapping[bytes, KeyLine] = {}
        self._keys: Mapping[bytes, Key] = {}
        self._watch.changed()
        self._take(self._read())
        self.fault = ""
        """Why the newest files are not in force (the ones before them are); empty where they are."""

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def names(self) -> list[str]:
        """Names of the keys in force, sorted."""
        return sorted(key.name for key in self._keys.values())

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> Key | None:
        """Whose request this is: one hash and one look-up. None: nobody's who has a key.

        `headers` as ASGI gives them (names in lower case). Where both are sent, `Authorization: Bearer` is
        what counts and `x-api-key` is not looked at. Either given twice is nobody's: a proxy and this router
        could mean different ones.

        How long it takes tells nothing of the keys: only hashes are compared, and nobody chooses those.
        """
        authorization = other = None
        for name, value in headers:
            if name == b"authorization":
                if authorization is not None:
                    return None
                authorization = value
            elif name == b"x-api-key":
                if other is not None:
                    return None
                other = value
        # Some other scheme (Basic, for a proxy before this router) leaves x-api-key to count.
        if authorization is not None and authorization[:7].lower() == b"bearer ":
            other = authorization[7:]
        if not other:
            return None
        return self._keys.get(sha256(other.strip()).digest())

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> Key:
        """As `check`, and one request taken from the key's rate. Raises RefusedError: 401 or 429."""
        found = self.check(headers)
        if found is None:
            raise unauthorized()
        if found.limiter is not None and (wait := found.limiter.take()):
            raise over_rate(found.name, wait)
        return found

    def poll(self) -> bool:
        """Take up what has changed in the files; whether the keys did. Call it every 0.5 s.

        Files that cannot be used leave the keys as they are (also when no key is left in them: who wants to
        let nobody in ends the router); the log says so once for each such version, without a word of theirs.
        Costs one `stat` a file, and blocks for the reading of what changed.
        """
        if not self._watch.changed():
            return False
        try:
            lines = self._read()
        except KeyFileError as error:
            # Half of the files may be from before a change: the next poll reads the whole of it.
            if self._watch.still() and str(error) != self.fault:
                self.fault = str(error)
                log.error("the API keys stay as they were (%d): %s", len(self), error)
            return False
        if not self._watch.still():
            return False
        if self.fault:
            log.info("the API keys' files can be used again")
        self.fault = ""
        if lines == self._lines:
            return False
        before = len(self)
        gone = sum(digest not in lines for digest in self._lines)
        self._take(lines)
        log.info("API keys changed: %d, %d of them new, %d gone", len(self), len(self) - before + gone, gone)
        return True

    def _take(self, lines: Mapping[bytes, KeyLine]) -> None:
        self._keys = {digest: self._key(line) for digest, line in lines.items()}
        self._lines = lines

    def _key(self, line: KeyLine) -> Key:
        """The key of a line. One that was there goes on with its bucket, whatever it is called now."""
        if line.rate is None:
            return Key(line.name, None)
        before = self._keys.get(line.digest)
        if before is None or before.limiter is None:
            return Key(line.name, TokenBucket(line.rate, clock=self._clock))
        if before.limiter.rate != line.rate:
            before.limiter.change(line.rate)
        return Key(line.name, before.limiter)

    def _read(self) -> dict[bytes, KeyLine]:
        """All keys by hash. Raises KeyFileError with all faults of all files."""
        faults: list[str] = []
        names: dict[str, str] = {}
        lines: dict[bytes, KeyLine] = {}
        for path in self._watch.paths:
            for file in files_of(path):
                try:
                    content = read_file(file, limit=_MAX_FILE)
                except OSError as error:
                    faults.append(f"{file}: cannot be read ({error.strerror}): give a file or folder of keys")
                    continue
                parsed = key_lines.parse(content, file_name=file.name if file != path else None)
                wrong = list(parsed.faults)
                for number, line in parsed.keys:
                    here = f"{file}:{number}"
                    if line.name in names:
                        wrong.append(
                            (
                                number,
                                f"name = {line.name!r}: also at {names[line.name]}: name keys differently",
                            )
                        )
                    elif line.digest in lines:
                        twin = lines[line.digest].name
                        wrong.append((number, f"hash of {line.name!r}: also that of {twin!r}: keep one"))
                    else:
                        names[line.name] = here
                        lines[line.digest] = line
                faults += [f"{file}:{number}: {what}" for number, what in sorted(wrong)]
        if not faults and not lines:
            faults.append("no file holds a key: make one with `plait key NAME` and add its line")
        if faults:
            raise KeyFileError(self._watch.paths, faults)
        return lines


def unauthorized() -> RefusedError:
    """401: no key, or none that is known."""
    return RefusedError(
        401,
        f"No valid API key was given. {_HOW}",
        code="invalid_api_key",
        headers=((b"www-authenticate", b"Bearer"),),
    )


def over_rate(name: str, seconds: float) -> RefusedError:
    """429: the key `name` has used up its rate for `seconds`."""
    wait = max(1, math.ceil(seconds))
    return RefusedError(
        429,
        f"The API key {name!r} is over its rate of requests: try again in {wait} s.",
        code="rate_limit_exceeded",
        type="requests",
        retry_after=wait,
    )
