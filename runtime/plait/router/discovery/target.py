"""One engine that a source has found, as a value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from plait.router.config import ConfigError
from plait.router.discovery import address
from plait.router.pairing import Side


class Target(NamedTuple):
    """Where one worker is. Build it with `Target.prefill` and `Target.decode`, which check it.

    `url`: scheme://host[:port] of its HTTP server. `bootstrap_host`, `bootstrap_port`: of a prefill engine's
    bootstrap server, as decode reaches it (IPv6 without brackets); empty and 0 for decode. `identity`: which
    process is behind the address, where the source knows: another identity at the same address is another
    worker. `draining`: no new requests, those under way go on. `reason`: why, for people.
    """

    side: Side
    url: str
    bootstrap_host: str = ""
    bootstrap_port: int = 0
    identity: str = ""
    draining: bool = False
    reason: str = ""

    @classmethod
    def prefill(
        cls,
        url: str,
        *,
        bootstrap_port: int,
        bootstrap_host: str = "",
        identity: str = "",
        field: str = "prefill",
    ) -> Target:
        """A prefill target; `bootstrap_host` is the URL's host where it is empty. Raises ConfigError.

        No bootstrap port is assumed: decode engines that ask the wrong one hang until their own time limit.
        """
        clean = address.engine_url(field, url)
        host = (
            address.bootstrap_host(f"{field} bootstrap host", bootstrap_host)
            if bootstrap_host
            else address.host_of(clean)
        )
        number = address.port(f"{field} bootstrap port", bootstrap_port)
        return cls(Side.PREFILL, clean, host, number, identity)

    @classmethod
    def decode(cls, url: str, *, identity: str = "", field: str = "decode") -> Target:
        """A decode target. Raises ConfigError."""
        return cls(Side.DECODE, address.engine_url(field, url), identity=identity)

    @property
    def key(self) -> Target:
        """What makes it this worker and no other: two targets with equal keys are the same worker."""
        return self._replace(draining=False, reason="")


Targets: TypeAlias = tuple[Target, ...]
"""The whole list of a source; no address stands in it twice."""


def distinct(targets: Iterable[Target]) -> Targets:
    """`targets` as a list. Raises ConfigError where an address stands twice."""
    found: dict[str, Target] = {}
    for target in targets:
        other = found.setdefault(target.url, target)
        if other is not target:
            sides = f"{other.side}, {target.side}" if other.side is not target.side else str(target.side)
            raise ConfigError(sides, target.url, "name every engine once, and as one role")
    return tuple(found.values())
