"""Addresses of engines as users write them: checked, and brought to one form to be compared by."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from plait.router.config import ConfigError

_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?", re.IGNORECASE)
_URL_FIX = "write http://HOST:PORT (no path, no user)"


def engine_url(field: str, text: str) -> str:
    """`text` as `scheme://host[:port]`, lower case, without a trailing slash. Raises ConfigError.

    Only http and https; a path, a query or a user would be lost on the way to the engine: they are refused.
    """
    try:
        # urlsplit drops tabs, line ends and leading blanks silently: it would judge another text.
        parts = urlsplit(text) if text.isprintable() and " " not in text else None
        port = parts.port if parts else None
    except ValueError:
        raise ConfigError(field, _without_user(text), _URL_FIX) from None
    if (
        parts is None
        or parts.scheme not in ("http", "https")
        or not _is_host(parts.hostname or "")
        or parts.path not in ("", "/")
        or parts.query
        or parts.fragment
        or parts.username is not None
        or port == 0
        or parts.netloc.endswith(":")
    ):
        raise ConfigError(field, _without_user(text), _URL_FIX)
    return join(parts.scheme, parts.hostname or "", port)


def join(scheme: str, host: str, port: int | None) -> str:
    """The URL of these parts; an IPv6 address gets its brackets."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" if port is None else f"{scheme}://{shown}:{port}"


def host_of(url: str) -> str:
    """The host of an `engine_url`, an IPv6 address without brackets."""
    return urlsplit(url).hostname or ""


def bootstrap_host(field: str, text: str) -> str:
    """`text` as a host name or an IP address (IPv6 without brackets). Raises ConfigError."""
    if not _is_host(text):
        raise ConfigError(
            field, text, "write a host name or an IP address alone: no scheme, no port, no brackets"
        )
    return text.lower()


def port(field: str, number: int) -> int:
    """`number`, a port between 1 and 65535. Raises ConfigError."""
    if not 1 <= number <= 65_535:
        raise ConfigError(field, number, "give a port between 1 and 65535")
    return number


def _without_user(text: str) -> str:
    """`text` as it may stand in a log: a password before the host must not."""
    head, at, tail = text.rpartition("@")
    scheme, slashes, _ = head.rpartition("//")
    return f"{scheme}{slashes}...@{tail}" if at else text


def _is_host(text: str) -> bool:
    if ":" not in text:
        return len(text) <= 253 and _NAME.fullmatch(text) is not None
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
