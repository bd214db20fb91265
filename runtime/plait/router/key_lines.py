"""Lines of a key file: `NAME sha256:HEX [rate=N/s|N/min] [burst=N]`.

HEX is the SHA-256 of the key's bytes; the key itself is in no file. Keys are long and random (`plait key`
makes them so), which is why a plain hash does: a slow one only helps keys that can be guessed.

Who writes such a file may paste the key where its hash belongs. No message repeats a word of a line that
could be one.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from plait.router.config import ConfigError
from plait.router.rates import Rate

KEY_PREFIX = "plait-"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,38}", re.ASCII)
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})", re.ASCII)
_OPTIONS = ("rate", "burst")
_FORM = "NAME sha256:HEX [rate=N/s] [burst=N]"
_NOBODY = hashlib.sha256(b"").digest()


class KeyLine(NamedTuple):
    """One key: its name, the SHA-256 of it, and its rate (None: any)."""

    name: str
    digest: bytes
    rate: Rate | None

    def __str__(self) -> str:
        return f"{self.name} sha256:{self.digest.hex()}"


class Parsed(NamedTuple):
    """The keys of one file, each with its line's number, and all that is wrong with it: (line, what)."""

    keys: list[tuple[int, KeyLine]]
    faults: list[tuple[int, str]]


def digest_of(key: bytes) -> bytes:
    """What a key file holds in the key's place."""
    return hashlib.sha256(key).digest()


def check_name(name: str) -> str:
    """`name`, where it can name a key in logs and metrics; else ConfigError."""
    if _looks_like_key(name):
        raise ConfigError(
            "name", _hidden(name), f"this looks like a key; write a name before its hash: {_FORM}"
        )
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "name",
            name if len(name) <= 80 else _hidden(name),
            "use up to 39 letters, digits, '.', '_' and '-', a letter or digit first",
        )
    return name


def parse(content: bytes, *, file_name: str | None = None) -> Parsed:
    """All lines of one file. `file_name` names a line that begins with its hash (a file of a Secret)."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = content.count(b"\n", 0, error.start) + 1
        return Parsed([], [(bad, f"byte {error.start} is not UTF-8: write the file as plain text")])
    parsed = Parsed([], [])
    # Not splitlines(), which also breaks at characters that no editor counts as the end of a line.
    for number, line in enumerate(text.split("\n"), start=1):
        words = _words(line)
        if not words:
            continue
        try:
            parsed.keys.append((number, _key(words, file_name)))
        except ConfigError as error:
            parsed.faults.append((number, str(error)))
    return parsed


def _words(line: str) -> list[str]:
    words = line.split()
    comment = next((i for i, word in enumerate(words) if word.startswith("#")), len(words))
    return words[:comment]


def _key(words: list[str], file_name: str | None) -> KeyLine:
    if words[0].startswith("sha256:"):
        if file_name is None:
            raise ConfigError("name", "", f"begin the line with the key's name: {_FORM}")
        words = [file_name, *words]
    if len(words) < 2:
        raise ConfigError("line", _hidden(words[0]), f"write {_FORM}")
    found = _DIGEST.fullmatch(words[1])
    if found is None:
        raise ConfigError(
            "hash",
            _hidden(words[1]),
            "write sha256: and the 64 hex digits of the key's SHA-256 (not the key)",
        )
    # Only now: in a line without a hash the first word may be the key.
    name = check_name(words[0])
    digest = bytes.fromhex(found[1])
    if digest == _NOBODY:
        raise ConfigError(
            "hash", words[1], "this is the hash of an empty key: make one with `plait key NAME`"
        )
    options = dict(map(_option, words[2:]))
    if len(options) < len(words) - 2:
        raise ConfigError("options", " ".join(f"{name}=" for name in options), "give each option once")
    if "burst" in options and "rate" not in options:
        raise ConfigError("burst", options["burst"], "give a rate too, for example rate=20/s")
    rate = Rate.parse(options["rate"], burst=options.get("burst")) if "rate" in options else None
    return KeyLine(name, digest, rate)


def _option(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or name not in _OPTIONS:
        raise ConfigError("option", _hidden(word), "known are rate=N/s, rate=N/min and burst=N")
    if len(value) > 20:
        raise ConfigError(name, _hidden(value), "write it like rate=20/s or burst=40")
    return name, value


def _looks_like_key(word: str) -> bool:
    return len(word) >= 40 or (word.startswith(("sk-", KEY_PREFIX)) and len(word) > 24)


def _hidden(word: str) -> str:
    """Stands for a word that could be a key."""
    return f"({len(word)} characters, not shown)"
