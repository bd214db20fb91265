"""Which workers there are to be: what a source has found, and what the admin API has changed.

Plain data with one listener; the parent of several processes keeps it and hands `Desired` on to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from plait.router.discovery.target import Target, Targets
from plait.router.errors import RouterError
from plait.router.pairing import Side


class Desired(NamedTuple):
    """All workers, and the addresses among them that get no new requests by the admin API's word."""

    targets: Targets = ()
    withdrawn: tuple[str, ...] = ()


class Known(NamedTuple):
    """All that a directory knows: what the source had `found`, and what the admin API changed."""

    found: Targets = ()
    added: Targets = ()
    removed: Targets = ()
    withdrawn: tuple[str, ...] = ()


_NOTHING = Known()


class Directory:
    """Calls `apply` with the whole `Desired` after each change.

    Changes by the admin API hold for this router's life: a worker added stays whatever the source says; one
    removed that the source still lists stays away for as long as the source lists just that one (in
    Kubernetes: that pod). `known`: what a directory before this one knew, whose life this one goes on with.
    """

    def __init__(self, apply: Callable[[Desired], None], *, known: Known = _NOTHING) -> None:
        self._apply = apply
        self._found = known.found
        self._added = {t.url: t for t in known.added}
        self._removed = set(known.removed)
        self._withdrawn = set(known.withdrawn)

    @property
    def known(self) -> Known:
        """For a directory after this one."""
        return Known(
            self._found, tuple(self._added.values()), tuple(self._removed), tuple(sorted(self._withdrawn))
        )

    @property
    def desired(self) -> Desired:
        """As it is now."""
        found = [t for t in self._found if t.key not in self._removed and t.url not in self._added]
        return Desired((*found, *self._added.values()), tuple(sorted(self._withdrawn)))

    def discovered(self, targets: Targets) -> None:
        """The source's whole list."""
        self._found = targets
        self._removed &= {t.key for t in targets}
        self._changed()

    def source_of(self, url: str) -> str:
        """`admin` for a worker that the admin API added, else `source`."""
        return "admin" if url in self._added else "source"

    def add(self, target: Target) -> None:
        """A worker beside those of the source. Raises RouterError (409) where the address is another's."""
        known = self._known(target.url)
        if known is not None and known.key != target.key:
            raise RouterError(
                409,
                f"'{target.url}' is listed as {known.side} already: remove it first.",
                code="worker_exists",
                param="url",
            )
        self._removed.discard(target.key)
        self._withdrawn.discard(target.url)
        if known is None or known.url in self._added:
            self._added[target.url] = target
        self._changed()

    def remove(self, url: str) -> None:
        """No new requests, and off the list. Raises RouterError (404)."""
        target = self._must_know(url)
        self._added.pop(url, None)
        self._removed.update(t.key for t in self._found if t.url == target.url)
        self._withdrawn.discard(url)
        self._changed()

    def drain(self, url: str, *, drain: bool = True) -> None:
        """No new requests (or again). Raises RouterError (404)."""
        self._must_know(url)
        (self._withdrawn.add if drain else self._withdrawn.discard)(url)
        self._changed()

    def _known(self, url: str) -> Target | None:
        return next((t for t in self.desired.targets if t.url == url), None)

    def _must_know(self, url: str) -> Target:
        known = self._known(url)
        if known is None:
            listed = ", ".join(sorted(t.url for t in self.desired.targets)) or "none"
            raise RouterError(
                404, f"No worker '{url}' is listed (listed: {listed}).", code="unknown_worker", param="url"
            )
        return known

    def _changed(self) -> None:
        desired = self.desired
        listed = {t.url for t in desired.targets}
        self._withdrawn &= listed
        self._apply(desired._replace(withdrawn=tuple(sorted(self._withdrawn))))


def encode(desired: Desired) -> list[object]:
    """As JSON values, for another process."""
    return [_encoded(desired.targets), list(desired.withdrawn)]


def decode(value: Iterable[Any]) -> Desired:
    """The inverse of `encode`."""
    targets, withdrawn = value
    return Desired(_decoded(targets), tuple(withdrawn))


def encode_known(known: Known) -> list[object]:
    """As JSON values, for a process after this one."""
    return [*(_encoded(targets) for targets in known[:3]), list(known.withdrawn)]


def decode_known(value: Iterable[Any]) -> Known:
    """The inverse of `encode_known`."""
    found, added, removed, withdrawn = value
    return Known(_decoded(found), _decoded(added), _decoded(removed), tuple(withdrawn))


def _encoded(targets: Targets) -> list[object]:
    return [[str(v) if i == 0 else v for i, v in enumerate(t)] for t in targets]


def _decoded(targets: Iterable[Any]) -> Targets:
    return tuple(Target(Side(t[0]), *t[1:]) for t in targets)
