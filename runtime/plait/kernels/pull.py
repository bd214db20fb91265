"""Pages of all owners into dense pages: a kernel that reads peers' memory by page list, for fragments.

All ranks' pools lie side by side in one address range (`plait.peer`): page p of rank r begins at byte
`r * stride + p * page_bytes` of `spanning`, so one base pointer reaches every owner.
HAZARD: nothing here waits. The owners' rows must have been written, and a barrier met, before the launch; and
no owner may write them again before this kernel has ended.
"""
# ruff: noqa: N803, N806 (constant arguments of kernels are upper case, as everywhere in Triton)

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

VECTOR = 16
"""Bytes that one thread moves at once; pages and stride are multiples of it."""


class PullConfig(NamedTuple):
    """chunk: bytes that a program moves at once. warps: per program. programs: at most so many in all."""

    chunk: int
    warps: int
    programs: int


CONFIGS = (
    PullConfig(chunk=8192, warps=4, programs=1056),
    PullConfig(chunk=16384, warps=8, programs=528),
    PullConfig(chunk=8192, warps=4, programs=264),
    PullConfig(chunk=4096, warps=4, programs=2112),
)


def pull(
    spanning: torch.Tensor,
    stride: int,
    page_bytes: int,
    owner: torch.Tensor,
    physical: torch.Tensor,
    place: torch.Tensor,
    out: torch.Tensor,
    *,
    first: int = 0,
    config: PullConfig = CONFIGS[0],
) -> None:
    """Copy page `physical[i]` of rank `owner[i]` to page `place[i]` of `out` for every i; place < 0: skipped.

    spanning: uint8 [bytes], contiguous, all ranks' memory. stride: bytes from one rank's pages to the next's.
    page_bytes: a multiple of 16, as is `stride`. owner, physical, place: int32 or int64 [pages] (one dtype).
    out: uint8 [dense pages, page_bytes] or flat, contiguous. Two i of one place: either may win.
    first: the i to begin with, cyclically: give each rank another, or all ranks read from one owner at once.
    Raises ValueError on sizes or dtypes that do not fit; ids are not checked (they are on the device).
    """
    count = check_pull(spanning, stride, page_bytes, (owner, physical, place), out)
    if not count:
        return
    chunks = -(-page_bytes // config.chunk)
    _pull[(min(count * chunks, config.programs),)](
        spanning.view(torch.int32),
        out.view(torch.int32),
        owner,
        physical,
        place,
        count,
        first % count,
        stride // VECTOR,
        PAGE_VECTORS=page_bytes // VECTOR,
        CHUNK_VECTORS=config.chunk // VECTOR,
        num_warps=config.warps,
    )


def pull_reference(
    spanning: torch.Tensor,
    stride: int,
    page_bytes: int,
    owner: torch.Tensor,
    physical: torch.Tensor,
    place: torch.Tensor,
    out: torch.Tensor,
    *,
    first: int = 0,
    config: PullConfig | None = None,
) -> None:
    """`pull` in plain torch: one gather and one scatter of page rows (holes go through a mask: it syncs).

    first and config change nothing that can be seen, here as there.
    """
    del first, config
    if not check_pull(spanning, stride, page_bytes, (owner, physical, place), out):
        return
    wanted = place >= 0
    pages = rank_pages(spanning, stride, page_bytes)
    source = (owner.long() * (stride // page_bytes) + physical.long())[wanted]
    out.view(-1, page_bytes).index_copy_(0, place.long()[wanted], pages.index_select(0, source))


def rank_pages(spanning: torch.Tensor, stride: int, page_bytes: int) -> torch.Tensor:
    """`spanning` as uint8 [pages, page_bytes]: page p of rank r is row `r * (stride // page_bytes) + p`.

    Raises ValueError if `stride` is not a multiple of `page_bytes`.
    """
    if stride % page_bytes:
        raise ValueError(f"stride is {stride}: it must be a multiple of the page's {page_bytes} bytes")
    pages = spanning.numel() // page_bytes
    return spanning[: pages * page_bytes].view(pages, page_bytes)


def check_pull(
    spanning: torch.Tensor,
    stride: int,
    page_bytes: int,
    lists: tuple[torch.Tensor, ...],
    out: torch.Tensor,
) -> int:
    """`check_pages`, and that `out` is whole pages."""
    count = check_pages(spanning, stride, page_bytes, lists)
    _check_bytes("out", out)
    if out.numel() % page_bytes:
        raise ValueError(f"out has {out.numel()} bytes: give whole pages of {page_bytes}")
    return count


def _check_bytes(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype != torch.uint8 or not tensor.is_contiguous():
        raise ValueError(f"{name} is {tensor.dtype} of strides {tensor.stride()}: give contiguous uint8")
    if tensor.data_ptr() % VECTOR:
        raise ValueError(f"{name} begins at an address that is no multiple of {VECTOR} bytes")


def check_pages(spanning: torch.Tensor, stride: int, page_bytes: int, lists: tuple[torch.Tensor, ...]) -> int:
    """Pages asked for, after checking what the host can see without a sync; ValueError if it does not fit."""
    if page_bytes <= 0 or page_bytes % VECTOR or stride % VECTOR:
        raise ValueError(f"page_bytes is {page_bytes}, stride {stride}: give multiples of {VECTOR} bytes")
    _check_bytes("spanning", spanning)
    if spanning.dim() != 1 or spanning.numel() % VECTOR:
        raise ValueError(f"spanning has shape {tuple(spanning.shape)}: give flat bytes, whole vectors")
    count = lists[0].numel()
    for tensor in lists:
        if tensor.shape != (count,) or tensor.dtype != lists[0].dtype or not tensor.is_contiguous():
            raise ValueError("the page lists must be 1-D, contiguous, of one length and one dtype")
    if lists[0].dtype not in (torch.int32, torch.int64):
        raise ValueError(f"the page lists are {lists[0].dtype}: give int32 or int64")
    return count


@triton.jit(do_not_specialize=["count", "first", "stride_vectors"])  # type: ignore[untyped-decorator]
def _pull(
    source: tl.tensor,
    out: tl.tensor,
    owner: tl.tensor,
    physical: tl.tensor,
    place: tl.tensor,
    count: tl.tensor,
    first: tl.tensor,
    stride_vectors: tl.tensor,
    PAGE_VECTORS: tl.constexpr,
    CHUNK_VECTORS: tl.constexpr,
) -> None:
    CHUNKS: tl.constexpr = (PAGE_VECTORS + CHUNK_VECTORS - 1) // CHUNK_VECTORS
    within = tl.arange(0, CHUNK_VECTORS * 4)
    for item in range(tl.program_id(0), count * CHUNKS, tl.num_programs(0)):
        page = item // CHUNKS + first
        page = tl.where(page >= count, page - count, page)
        target = tl.load(place + page).to(tl.int64)
        start = tl.load(owner + page).to(tl.int64) * stride_vectors
        start += tl.load(physical + page).to(tl.int64) * PAGE_VECTORS
        offset = item % CHUNKS * (CHUNK_VECTORS * 4) + within
        wanted = (offset < PAGE_VECTORS * 4) & (target >= 0)
        # Times 4 last: so the compiler sees that every address is a whole vector.
        data = tl.load(source + start * 4 + offset, mask=wanted, cache_modifier=".cg")
        tl.store(out + target * PAGE_VECTORS * 4 + offset, data, mask=wanted)
