"""What a rank sends of a request: the pages it owns, each with its logical position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.layout import owner, physical

Pages = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]


class OwnedPages(NamedTuple):
    """`pages`: np.int32 [n], rows of the sender's own buffers. `positions`: np.int64 [n], where each stands
    in the list that was asked for, ascending; the receiver's page for it is at the same position of its
    own list."""

    pages: Pages
    positions: Positions


def owned_pages(
    logical: npt.ArrayLike, *, rank: int, ranks: int, sharded: bool, first_position: int = 0
) -> OwnedPages:
    """The pages of `logical` (1-D, a request's pages in sequence order) that `rank` owns.

    sharded: whether buffers hold physical pages (shared layout) or logical ones (replicated: every rank has
    all pages, and still each sends its own, so that the two layouts differ in storage alone).
    first_position: position of `logical[0]` in the request.
    """
    ids = np.asarray(logical, dtype=np.int64)
    own = np.flatnonzero(owner(ids, ranks) == rank)
    chosen = ids[own]
    pages = physical(chosen, ranks) if sharded else chosen
    return OwnedPages(pages.astype(np.int32), own.astype(np.int64) + first_position)


def destination_fault(
    positions: Positions,
    *,
    destination_pages: int,
    source_state: Sequence[int],
    destination_state: Sequence[int],
) -> str | None:
    """Why a request's pages do not fit the list that its destination announced, or None.

    source_state, destination_state: lengths of the state lists (index pages) of both sides, empty where the
    state does not travel yet. The engine would pair lists of unequal length by cutting the longer one off.
    """
    if len(positions) and (int(positions.max()) >= destination_pages or int(positions.min()) < 0):
        return (
            f"positions {int(positions.min())}..{int(positions.max())} do not fit the {destination_pages} "
            "pages that decode has allocated"
        )
    if source_state and list(source_state) != list(destination_state):
        return (
            f"prefill has {list(source_state)} index pages to send, decode has allocated "
            f"{list(destination_state)}"
        )
    return None
