"""Where each segment lies in a rank's allocation, and how the ranks' allocations lie side by side. Pure.

    base              base + stride             base + 2 * stride
    | rank 0 | hole   | rank 1 | hole           | rank 2 |

Every rank lays out the same segments, so that one offset holds for all. The holes are address space only:
no memory stands behind them, and touching them faults. They make `stride` a multiple of every unit (page
bytes), so that page p of rank r is page `r * (stride // unit) + p` of what spans all ranks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 256
"""Bytes. Each segment starts at a multiple: what CUDA's own allocator promises, and kernels rely on."""

_MOST_SPAN = 1 << 46
"""Bytes. Half of the 47 bits that an address range of one process can take."""


class Segment(NamedTuple):
    """One tensor's bytes in every rank's memory, by a name that is unique in the arena ("mla.0")."""

    name: str
    nbytes: int


class Placed(NamedTuple):
    """A segment's place in a rank's allocation, in bytes."""

    offset: int
    nbytes: int


class Arena(NamedTuple):
    """The layout that all ranks share.

    places: by segment name. size: bytes of one rank's allocation, a multiple of the granularity.
    stride: bytes from one rank's allocation to the next one's. span: bytes of address space in all.
    digest: equal on two ranks if and only if all of this is.
    """

    places: dict[str, Placed]
    size: int
    stride: int
    span: int
    digest: str


def lay_out(segments: Sequence[Segment], *, ranks: int, granularity: int, unit_bytes: Sequence[int]) -> Arena:
    """Lay `segments` out in their order.

    granularity: bytes that an allocation of the device is a multiple of. unit_bytes: `stride` is a multiple
    of each. Raises ValueError for a name used twice, a negative size, a unit that is not positive, no ranks,
    or a span that is beyond an address space.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}: a group has at least one")
    if granularity < ALIGNMENT or granularity % ALIGNMENT:
        raise ValueError(f"granularity is {granularity}: not a multiple of {ALIGNMENT} bytes")
    if bad := [unit for unit in unit_bytes if unit < 1]:
        raise ValueError(f"unit_bytes has {bad[0]}: a unit is at least one byte")
    places: dict[str, Placed] = {}
    end = 0
    for name, nbytes in segments:
        if name in places:
            raise ValueError(f"segments has {name!r} twice")
        if nbytes < 0:
            raise ValueError(f"segment {name!r} has {nbytes} bytes")
        places[name] = Placed(end, nbytes)
        end = _up(end + nbytes, ALIGNMENT)
    size = max(_up(end, granularity), granularity)
    stride = _up(size, math.lcm(granularity, *unit_bytes))
    span = (ranks - 1) * stride + size
    if span > _MOST_SPAN:
        raise ValueError(
            f"{ranks} ranks side by side take {span} bytes of addresses: the stride of {stride} bytes must "
            f"be a multiple of {granularity} and of each unit ({', '.join(map(str, unit_bytes))})"
        )
    told = json.dumps([list(places.items()), size, stride, ranks, granularity], separators=(",", ":"))
    return Arena(places, size, stride, span, hashlib.sha256(told.encode()).hexdigest())


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
