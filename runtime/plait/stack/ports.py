"""Ports on this machine: those that were asked for must be free, the others are picked."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterable

# Below the kernel's ephemeral range: no outgoing connection takes a port between our look and its use.
PICK_FROM = range(20_000, 32_000)


class PortError(ValueError):
    """A port that cannot be used; names it and the way out."""


def is_free(port: int, *, host: str) -> bool:
    """Whether a server could listen on (host, port) now; raises PortError when the host is not ours."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise PortError(f"host={host}: not an address of this machine ({error}): use 127.0.0.1") from error
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections linger in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise PortError(f"host={host}: cannot listen there ({error.strerror}): use 127.0.0.1") from error
    return True


def require_free(port: int, *, host: str, field: str) -> int:
    """`port`, if it can be listened on; PortError names `field` otherwise."""
    if not 1 <= port <= 65535:
        raise PortError(f"{field}={port}: not a port: use 1 to 65535, or leave it out to have one picked")
    if not is_free(port, host=host):
        raise PortError(
            f"{field}={port}: already in use (or not allowed) on {host}: stop what listens there, "
            "name another port, or leave it out to have one picked"
        )
    return port


def pick_free(count: int, *, host: str, taken: Iterable[int] = ()) -> list[int]:
    """`count` different free ports outside `taken`; PortError when the range is exhausted."""
    used = set(taken)
    picked: list[int] = []
    for port in random.sample(PICK_FROM, len(PICK_FROM)):
        if len(picked) == count:
            break
        if port not in used and is_free(port, host=host):
            picked.append(port)
    if len(picked) < count:
        raise PortError(f"no {count} free ports from {PICK_FROM.start} to {PICK_FROM.stop - 1} on {host}")
    return picked
