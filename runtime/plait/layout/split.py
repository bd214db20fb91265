"""Split plan: which rank computes which token of a batch. Whoever owns a page computes its tokens.

So every rank writes only its own pages, whatever the allocator handed out. A rank may have no token of a
request, or of the whole batch: that is an ordinary share of zero rows, not a special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plait.contract.layouts import PAGE_SIZE
from plait.layout.pages import Int64Array, listed


class SplitRequest(NamedTuple):
    """One request of a batch.

    prefix: cached tokens, a multiple of the page size. extend: new tokens of this forward, at least 1.
    pages: logical page ids of the whole sequence, np.int64 [ceil((prefix + extend) / 64)].
    """

    prefix: int
    extend: int
    pages: Int64Array


@dataclass(frozen=True)
class SplitPlan:
    """The shares of all ranks, over the batch's extend tokens concatenated in request order.

    token_index: per rank, np.int64 [its rows]: the tokens it computes as flat indices, ascending, so each
        request's local tokens are contiguous and requests stay in order.
    request_lengths: np.int64 [N, batch]: local tokens of each request on each rank, zeros included.
    lengths: np.int64 [N]: rows of each rank. last_owner: np.int64 [batch]: rank of each request's last token.
    token_owner, local_row: np.int64 [tokens]: rank of each token, and its row there.
    """

    token_index: tuple[Int64Array, ...]
    request_lengths: Int64Array
    lengths: Int64Array
    last_owner: Int64Array
    token_owner: Int64Array
    local_row: Int64Array

    @property
    def ranks(self) -> int:
        return len(self.token_index)

    @property
    def tokens(self) -> int:
        """Extend tokens of the batch."""
        return len(self.token_owner)

    @property
    def max_length(self) -> int:
        """Rows of the rank that has most: what every rank is padded to at least."""
        return int(self.lengths.max())

    @property
    def imbalance(self) -> float:
        """Most rows over mean rows: 1.0 is even, N is one rank doing everything."""
        return self.max_length * self.ranks / self.tokens

    def gather_index(self, padded: int) -> Int64Array:
        """Row of each token once all ranks' rows, `padded` each, are concatenated: np.int64 [tokens].

        `rows[gather_index(padded)]` are the batch's tokens in order. ValueError if a share exceeds `padded`.
        """
        if padded < self.max_length:
            raise ValueError(f"padded is {padded}: the longest share has {self.max_length} rows; pad to that")
        return self.token_owner * padded + self.local_row

    @classmethod
    def from_pages(cls, requests: Sequence[SplitRequest], *, ranks: int) -> SplitPlan:
        """The plan that page ownership gives for `requests` on `ranks` ranks.

        Raises ValueError naming the request and field on: no request, a prefix that is not page-aligned,
        extend below 1, more or fewer pages than the lengths need, a reserved page, a new page used twice.
        """
        if ranks < 1:
            raise ValueError(f"ranks is {ranks}: give the CP group's size, at least 1")
        if not requests:
            raise ValueError("requests is empty: a batch has at least one request")
        pages = np.concatenate([_new_pages(i, request, ranks) for i, request in enumerate(requests)])
        _refuse_shared(pages)
        extends = np.array([request.extend for request in requests], dtype=np.int64)
        page_counts = -(-extends // PAGE_SIZE)
        last_pages = np.cumsum(page_counts) - 1
        # Tokens in each page: full, but for the last page of each request.
        sizes = np.full(len(pages), PAGE_SIZE, dtype=np.int64)
        sizes[last_pages] = extends - (page_counts - 1) * PAGE_SIZE
        first_token = np.cumsum(sizes) - sizes
        owners = pages % ranks

        lengths = _sums(owners, sizes, ranks)
        batch = len(requests)
        request_of_page = np.repeat(np.arange(batch, dtype=np.int64), page_counts)
        request_lengths = _sums(owners * batch + request_of_page, sizes, ranks * batch)

        # Pages in order of (owner, position); their rows follow one another within each owner.
        order = np.argsort(owners, kind="stable")
        ordered_sizes = sizes[order]
        ordered_first_row = np.cumsum(ordered_sizes) - ordered_sizes
        first_row = np.empty_like(first_token)
        first_row[order] = ordered_first_row - (np.cumsum(lengths) - lengths)[owners[order]]

        count = np.arange(int(extends.sum()), dtype=np.int64)
        by_rank = count + np.repeat(first_token[order] - ordered_first_row, ordered_sizes)
        return cls(
            token_index=tuple(np.split(by_rank, np.cumsum(lengths)[:-1])),
            request_lengths=request_lengths.reshape(ranks, batch),
            lengths=lengths,
            last_owner=owners[last_pages],
            token_owner=np.repeat(owners, sizes),
            local_row=count + np.repeat(first_row - first_token, sizes),
        )


def _sums(groups: Int64Array, values: Int64Array, count: int) -> Int64Array:
    """Sum of `values` per group, np.int64 [count] (float64 inside: exact far beyond any token count)."""
    return np.bincount(groups, weights=values, minlength=count).astype(np.int64)


def _new_pages(index: int, request: SplitRequest, ranks: int) -> Int64Array:
    """The pages of one request's extend tokens, after checking the request."""
    prefix, extend, pages = request
    field = f"requests[{index}]"
    if prefix < 0 or prefix % PAGE_SIZE:
        raise ValueError(
            f"{field}.prefix is {prefix}: it must be a multiple of {PAGE_SIZE}; round the cached prefix down "
            f"to {max(prefix, 0) // PAGE_SIZE * PAGE_SIZE}"
        )
    if extend < 1:
        raise ValueError(f"{field}.extend is {extend}: a request in a batch has at least 1 new token")
    needed = -(-(prefix + extend) // PAGE_SIZE)
    if pages.ndim != 1 or len(pages) != needed:
        raise ValueError(
            f"{field}.pages has shape {pages.shape}: prefix {prefix} and extend {extend} need exactly "
            f"{needed} page ids"
        )
    if pages.dtype.kind not in "iu":
        raise ValueError(f"{field}.pages has dtype {pages.dtype}: give integer logical page ids")
    reserved = pages[pages < ranks]
    if len(reserved):
        raise ValueError(
            f"{field}.pages holds {listed(reserved)}: ids below {ranks} are the reserved stripe; the request "
            f"has no page there"
        )
    return pages[prefix // PAGE_SIZE :].astype(np.int64, copy=False)


def _refuse_shared(pages: Int64Array) -> None:
    """A new page written by two requests, or twice by one, would be silent corruption."""
    ordered = np.sort(pages)
    shared = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(shared):
        raise ValueError(f"requests write pages {listed(shared)} more than once: allocate each its own")
