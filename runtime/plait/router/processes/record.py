"""What the admin process knows of the workers, in a file for the admin process that replaces it."""

from __future__ import annotations

import logging
import os

import orjson

from plait.router.directory import Known, decode_known, encode_known

log = logging.getLogger("plait.router.processes")


def save(path: str, known: Known) -> None:
    """Replace the record. One that cannot be written is told in the log: only a crash would need it."""
    try:
        with open(f"{path}.new", "wb") as file:
            file.write(orjson.dumps(encode_known(known)))
        os.replace(f"{path}.new", path)
    except OSError as error:
        log.warning("the list of workers cannot be recorded: %s", error)


def load(path: str) -> Known:
    """The last record; nothing known where there is none, or none that can be read."""
    try:
        with open(path, "rb") as file:
            return decode_known(orjson.loads(file.read()))
    except FileNotFoundError:
        return Known()
    except (OSError, ValueError, TypeError, LookupError) as error:
        log.error("the record of the list of workers cannot be read: %s", error)
        return Known()
