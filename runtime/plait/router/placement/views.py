"""A worker as placement sees it."""

from __future__ import annotations

from plait.router.placement.rendezvous import seed_of


class View:
    """One worker's part in placement; its owner keeps the fields up to date, placement only reads them.

    `id`: never used again, so a worker that restarted is another one (what it had cached is gone). `name`:
    stable between processes, replicas and restarts (its URL). `wire`: hash of its wire contract, empty while
    unknown. `in_flight`: legs under way, against `limit`. `load`: what is compared with other workers, in
    usual requests; equal to `in_flight` unless requests are weighed. `last_picked`: number of the pick that
    chose it last (0: never). `suspect`: it answered its last health check late, and gets requests only when
    nobody else can take them.
    """

    __slots__ = ("id", "in_flight", "last_picked", "limit", "load", "name", "seed", "suspect", "wire")

    def __init__(self, id: int, name: str, *, wire: str = "", limit: int = 1 << 30) -> None:
        self.id = id
        self.name = name
        self.seed = seed_of(name)
        self.wire = wire
        self.limit = limit
        self.in_flight = 0
        self.load = 0.0
        self.last_picked = 0
        self.suspect = False
