"""Ports for the servers of a test."""

from __future__ import annotations

import contextlib
import secrets
import socket


def free_port() -> int:
    """A port that nobody listens on now, nor will: below those that the system hands out by itself.

    Otherwise a connection that somebody opens meanwhile may have it.
    """
    first, last = 12_000, 32_000
    while True:
        port = first + secrets.randbelow(last - first)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
