"""One small trial of each kernel against its torch reference: at start on the engine's device, and in tests.

Inputs are fixed, small, and hold what goes wrong: padding, holes, pages of other ranks, partial pages, empty
rows. Outputs are poisoned; a byte beyond what the reference writes is a failure as well.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from plait.contract.layouts import PAGE_SIZE
from plait.kernels import (
    convert,
    pages,
    pull,
    pull_rows,
    read_index,
    rerange,
    row_range,
    store_index,
    store_mla,
)

POISON = 0xFF
SCALE_STEPS = 2
"""Units in the last place by which a packed row's scale may differ from an exact division's: the device's
fast division is within 2, the largest magnitude of a tile is exact."""


class TrialFailedError(RuntimeError):
    """A kernel ran and left other bytes than its reference."""


def poisoned(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor whose every byte is `POISON`."""
    out = torch.empty(shape, dtype=dtype, device=device)
    out.view(-1).view(torch.uint8).fill_(POISON)
    return out


def same(kernel: torch.Tensor, reference: torch.Tensor) -> None:
    """Raise TrialFailedError unless both tensors hold the same bytes."""
    left, right = (part.contiguous().view(-1).view(torch.uint8) for part in (kernel, reference))
    if not torch.equal(left, right):
        wrong = int((left != right).sum())
        raise TrialFailedError(f"{wrong} of {left.numel()} bytes differ from the torch reference")


def close_rows(kernel: torch.Tensor, reference: torch.Tensor) -> None:
    """As `same` for packed rows, uint8 [n, 656], but for what the device's fast division may change: scales
    by `SCALE_STEPS` units in the last place, values by one FP8 step."""
    latent, rope = store_mla.SCALES_AT, store_mla.ROPE_AT
    same(kernel[:, rope:], reference[:, rope:])
    left, right = (part[:, latent:rope].contiguous().view(torch.int32) for part in (kernel, reference))
    if int((left.long() - right.long()).abs().max()) > SCALE_STEPS:
        raise TrialFailedError("scales differ from the torch reference by more than the division's error")
    left, right = (_ordered(part[:, :latent]) for part in (kernel, reference))
    if int((left - right).abs().max()) > 1:
        raise TrialFailedError("FP8 values differ from the torch reference by more than one step")


def _ordered(codes: torch.Tensor) -> torch.Tensor:
    """FP8 codes as integers in the order of their values."""
    magnitude = (codes & 0x7F).to(torch.int16)
    return torch.where(codes >= 0x80, -magnitude, magnitude)


def _ids(values: list[int], device: torch.device, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).to(device)


def _random(device: torch.device, *shape: int) -> torch.Tensor:
    """float32 of a fixed seed, made on the host: equal on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(device)


def _bytes(device: torch.device, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).to(device)


SLOTS = [64 * 2 + 5, -1, 64 * 3, 64 * 5 + 63, 64 * 4 + 1, 64 * 7 + 9, 64 * 2 + 6]
"""Logical slots on two ranks, pages 2..7: both ranks own some, one is padding."""


def try_store_mla(device: torch.device) -> None:
    slots = _ids(SLOTS, device, torch.int64)
    nope = (_random(device, 9, 512) * 3).to(torch.bfloat16)
    rope = _random(device, 9, 576).to(torch.bfloat16)[:, 512:]
    for width, dtype in ((store_mla.ROW_BYTES, torch.uint8), (576, torch.bfloat16)):
        out, expected = (poisoned(256, 1, width, dtype=dtype, device=device) for _ in range(2))
        for rank in (0, 1):
            store_mla.store_mla(out, slots, nope, rope, rank=rank, ranks=2)
            store_mla.store_mla_reference(expected, slots, nope, rope, rank=rank, ranks=2)
            if dtype == torch.uint8:
                close_rows(out[:, 0], expected[:, 0])
            else:
                same(out, expected)


def try_store_index(device: torch.device) -> None:
    slots = _ids(SLOTS, device, torch.int64)
    key, scale = _bytes(device, 9, 128).view(torch.float8_e4m3fn), _random(device, 9, 1)
    out, expected = (poisoned(4, store_index.PAGE_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    store_index.store_index(out, slots, key, scale, rank=1, ranks=2)
    store_index.store_index_reference(expected, slots, key, scale, rank=1, ranks=2)
    same(out, expected)


def try_store_index_key(device: torch.device) -> None:
    slots = _ids(SLOTS, device, torch.int64)
    key = _random(device, 9, 192).to(torch.bfloat16)[:, :128]
    # The plain rounding divides fast on the device, as stock's does: its bytes may differ from torch's.
    for rounding in (store_index.Rounding.FUSED, store_index.Rounding.POWER_OF_TWO):
        out, expected = (
            poisoned(4, store_index.PAGE_BYTES, dtype=torch.uint8, device=device) for _ in (0, 1)
        )
        store_index.store_index_key(out, slots, key, rounding=rounding, rank=0, ranks=2)
        store_index.store_index_key_reference(expected, slots, key, rounding=rounding, rank=0, ranks=2)
        same(out, expected)


def try_page_inverse(device: torch.device) -> None:
    for dtype in (torch.int32, torch.int64):
        ids = _ids([4, -1, 9, 2, 4, 0], device, dtype)
        out, expected = (poisoned(10, dtype=torch.int32, device=device) for _ in range(2))
        same(pages.page_inverse(ids, out), pages.page_inverse_reference(ids, expected))


def try_dense(device: torch.device) -> None:
    inverse = _ids([3, -1, 0, 2], device)
    for unit, kernel, reference in (
        (1, pages.dense_pages, pages.dense_pages_reference),
        (PAGE_SIZE, pages.dense_slots, pages.dense_slots_reference),
    ):
        ids = _ids([0, -1, unit, 2 * unit + unit // 2, 4 * unit - 1, 4 * unit], device)
        out, expected = (poisoned(6, dtype=torch.int32, device=device) for _ in range(2))
        same(kernel(ids, inverse, out), reference(ids, inverse, expected))


def try_peer_pages(device: torch.device) -> None:
    ids = _ids([0, -1, 5, 1000, 7], device)
    out, expected = (poisoned(5, dtype=torch.int32, device=device) for _ in range(2))
    pages.peer_pages(ids, out, ranks=4, pages_per_rank=300)
    same(out, pages.peer_pages_reference(ids, expected, ranks=4, pages_per_rank=300))


def try_peer_slots(device: torch.device) -> None:
    ids = _ids([0, -1, 5, 100000, 64 * 7 + 63], device, torch.int64)
    out, expected = (poisoned(5, dtype=torch.int64, device=device) for _ in range(2))
    pages.peer_slots(ids, out, ranks=3, rows_per_rank=2**33)
    same(out, pages.peer_slots_reference(ids, expected, ranks=3, rows_per_rank=2**33))


def try_pull(device: torch.device) -> None:
    for page_bytes in (8448, 41984):
        spanning, stride = _bytes(device, 7 * page_bytes), 4 * page_bytes
        owner, physical, place = (_ids(one, device) for one in ([1, 0, 1, 0], [2, 0, 0, 2], [0, 3, -1, 2]))
        out, expected = (poisoned(4, page_bytes, dtype=torch.uint8, device=device) for _ in range(2))
        pull.pull(spanning, stride, page_bytes, owner, physical, place, out, first=3)
        pull.pull_reference(spanning, stride, page_bytes, owner, physical, place, expected)
        same(out, expected)


def try_pull_rows(device: torch.device) -> None:
    for page_bytes, parts in ((8448, pull_rows.INDEX_PARTS), (41984, pull_rows.mla_parts(656))):
        spanning, stride = _bytes(device, 7 * page_bytes), 4 * page_bytes
        owner, physical, place = (_ids(one, device) for one in ([1, 0, 1], [2, 0, 0], [0, 3, -1]))
        lists = (owner, physical, place, _ids([0, 17, 0], device), _ids([64, 23, 9], device))
        both = []
        for run in (pull_rows.pull_rows, pull_rows.pull_rows_reference):
            out = poisoned(4, page_bytes, dtype=torch.uint8, device=device)
            run(spanning, stride, page_bytes, *lists, out, parts=parts)
            both.append(out)
        same(*both)


def try_rerange(device: torch.device) -> None:
    source, target, length = (_ids(one, device) for one in ([70, 0, 40], [0, 9, 64], [9, 55, 3]))
    table = rerange.Segments(source, target, length, longest=55)
    for width in (576, 33):
        rows = _random(device, 80, width).to(torch.bfloat16)
        out, expected = (poisoned(70, width, dtype=torch.bfloat16, device=device) for _ in range(2))
        same(rerange.rerange(rows, table, out), rerange.rerange_reference(rows, table, expected))


def try_take_rows(device: torch.device) -> None:
    index = _ids([5, -1, 0, 7, 7], device, torch.int64)
    for width in (576, 33):
        rows = _random(device, 8, width).to(torch.bfloat16)
        out, expected = (poisoned(5, width, dtype=torch.bfloat16, device=device) for _ in range(2))
        same(rerange.take_rows(rows, index, out), rerange.take_rows_reference(rows, index, expected))


def try_read_index(device: torch.device) -> None:
    buffer = _bytes(device, 4, store_index.PAGE_BYTES)
    table = _ids([3, 1, 0, 2, -1, -1], device).view(2, 3)
    lengths, queries = _ids([0, 130, 171], device), _queries(device)
    both = []
    for read in (read_index.read_index, read_index.read_index_reference):
        keys = poisoned(171, 128, dtype=torch.float8_e4m3fn, device=device)
        out = read_index.IndexKeys(keys, poisoned(171, dtype=torch.float32, device=device))
        ranges = _unfilled(device)
        read(buffer, table, lengths, queries, out, ranges, longest=130)
        both.append((*out, *ranges))
    for mine, reference in zip(*both, strict=True):
        same(mine, reference)


def try_row_range(device: torch.device) -> None:
    lengths, queries = _ids([0, 130, 171], device), _queries(device)
    for asked in (queries, queries._replace(positions=None)):
        out, expected = (_unfilled(device) for _ in range(2))
        row_range.row_range(asked, lengths, out)
        row_range.row_range_reference(asked, lengths, expected)
        for mine, reference in zip(out, expected, strict=True):
            same(mine, reference)


def _unfilled(device: torch.device) -> row_range.RowRange:
    return row_range.RowRange(*poisoned(3, 6, dtype=torch.int32, device=device).unbind())


def _queries(device: torch.device) -> row_range.Queries:
    positions = _ids([64, 65, 129, 40], device, torch.int64)
    return row_range.Queries(_ids([0, 3, 4], device), positions, rows=6)


def _packed(device: torch.device, rows: int) -> torch.Tensor:
    host = torch.device("cpu")
    nope, rope = (_random(host, rows, width).to(torch.bfloat16) for width in (512, 64))
    return store_mla.packed_rows(nope, rope).to(device)


def try_convert_rows(device: torch.device) -> None:
    pool, slots = _packed(device, 66), _ids([65, -1, 0, 7, 7], device)
    out, expected = (poisoned(5, 1, convert.WIDTH, dtype=torch.bfloat16, device=device) for _ in range(2))
    same(convert.convert_rows(pool, slots, out), convert.convert_rows_reference(pool, slots, expected))


def try_convert_pages(device: torch.device) -> None:
    spanning, stride = _packed(device, 4 * PAGE_SIZE).view(-1), 2 * convert.PAGE_BYTES
    owner, physical, place = (_ids(one, device) for one in ([1, 0, 1], [1, 0, 0], [0, 2, -1]))
    out, expected = (poisoned(3 * PAGE_SIZE, 576, dtype=torch.bfloat16, device=device) for _ in range(2))
    convert.convert_pages(spanning, stride, owner, physical, place, out)
    same(out, convert.convert_pages_reference(spanning, stride, owner, physical, place, expected))


Trial = Callable[[torch.device], None]
