"""Rendezvous hashing: each key has its own order of workers, the same in every process and replica.

The worker with the highest weight for a key is the key's home. When a worker goes, only its own keys move,
each to the second in its order; when it comes back they return.
"""

from __future__ import annotations

from collections.abc import Iterable

from xxhash import xxh3_64_digest, xxh3_64_intdigest


def seed_of(name: str) -> bytes:
    """The eight bytes that stand for worker `name` in `weight`. Keep them, they cost more than a weight."""
    return xxh3_64_digest(name.encode("utf-8", "surrogatepass"))


def key_of(text: str) -> int:
    """64-bit key of a header value or another name."""
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


# weight(seed, key): 64 even bits for a worker (`seed_of`) and a 64-bit key; the highest is the key's home.
# XXH3 of eight bytes under a 64-bit seed is one integer mix, done in C: a seventh of its cost in Python.
weight = xxh3_64_intdigest


def order(key: int, seeds: Iterable[bytes]) -> list[int]:
    """Positions of `seeds`, home first."""
    weights = [weight(seed, key) for seed in seeds]
    return sorted(range(len(weights)), key=weights.__getitem__, reverse=True)
