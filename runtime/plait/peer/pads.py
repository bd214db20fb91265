"""Signal pads: a small memory of each rank, into which every other rank writes how far it has come.

    rank's pad:  channel 0: [from rank 0][from rank 1] ...      one int32 epoch each
                 channel 1: ...
                 counters:  this rank's own epoch, by channel

All words begin at `FIRST_EPOCH`, and epochs wrap as int32 do: two are compared by the
sign of their difference.
"""

from __future__ import annotations

from typing import NamedTuple

CHANNELS = 16
"""Barriers that can be used independently of each other."""
MOST_RANKS = 32
"""Ranks of one host that a pad has words for: one warp's lanes."""
WORD_BYTES = 4
CHANNEL_BYTES = MOST_RANKS * WORD_BYTES
COUNTERS_OFFSET = CHANNELS * CHANNEL_BYTES
PAD_BYTES = COUNTERS_OFFSET + CHANNELS * WORD_BYTES
FIRST_EPOCH = 2**31 - 256
"""Close before the wrap, so that every run of more than 256 meetings passes it: no rare case is left."""


class Fault(NamedTuple):
    """A barrier that ranks did not come to. meeting: the how-manieth of its channel, from 1 on."""

    channel: int
    meeting: int
    missing: tuple[int, ...]


def after(epoch: int) -> int:
    """The epoch after `epoch`, as int32."""
    return _int32(epoch + 1)


def is_behind(seen: int, epoch: int) -> bool:
    """Whether `seen` has not reached `epoch`. Both int32; they are less than 2^31 apart."""
    return _int32(seen - epoch) < 0


def meeting_number(epoch: int) -> int:
    """The how-manieth meeting since the start `epoch` is (modulo 2^32)."""
    return (epoch - FIRST_EPOCH) & 0xFFFFFFFF


def ranks_of(mask: int) -> tuple[int, ...]:
    """The ranks whose bits are set."""
    return tuple(rank for rank in range(MOST_RANKS) if mask >> rank & 1)


def _int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31
