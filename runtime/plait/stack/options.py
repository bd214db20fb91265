"""From what the user typed to complete options: defaults from the model, refusals all at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from plait.contract.capacity import pages_of_pool, pool_unit
from plait.contract.layouts import PAGE_SIZE, Layout, Split
from plait.contract.shape import ModelShape
from plait.contract.violation import ContractError, Violation, nearest
from plait.stack.plan import StackOptions

MAX_RANKS = 8
MAX_DECODE = 64


def cuda_devices() -> list[str]:
    """CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES would list them; asks no driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [device.strip() for device in visible.split(",") if device.strip()]
    nodes = [node.name.removeprefix("nvidia") for node in Path("/dev").glob("nvidia*")]
    return sorted((name for name in nodes if name.isdecimal()), key=int)


def resolve(
    *,
    model: Path,
    cp: int,
    decode: int,
    layout: str,
    split: str,
    chunk: int,
    context_length: int | None,
    max_total_tokens: int | None,
    cpu: bool | None,
    host: str,
    prefill_args: Sequence[str],
    decode_args: Sequence[str],
    folder: Path,
) -> StackOptions:
    """Complete options. None means: the model's own length; a pool of two such requests on CPU, and as
    large as the memory allows on GPUs; CPU where there is no CUDA device.

    Raises ContractError with every violation: of the model's config.json, or of the options.
    """
    model = model.absolute()
    shape = ModelShape.from_path(model)
    longest = shape.max_position_embeddings
    bad = [
        *_choice("--layout", layout, [Layout.SHARED.value, Layout.REPLICATED.value]),
        *_choice("--split", split, [each.value for each in Split]),
        *_between("--cp", cp, 2, MAX_RANKS, "context-parallel prefill ranks on one machine"),
        *_between("--decode", decode, 1, MAX_DECODE, "decode engines"),
    ]
    if chunk < PAGE_SIZE or chunk % PAGE_SIZE:
        fix = f"a positive multiple of {PAGE_SIZE}"
        bad.append(
            Violation("--chunk", chunk, f"prompts are chunked in whole pages of {PAGE_SIZE} tokens", fix)
        )
    if context_length is None:
        context_length = longest
    if context_length < PAGE_SIZE or (longest and context_length > longest):
        reason, fix = "not a length that the model serves", f"{PAGE_SIZE} to {longest or 'its own limit'}"
        bad.append(Violation("--context-length", context_length, reason, fix))
    devices = cuda_devices()
    on_cpu = not devices if cpu is None else cpu
    if not on_cpu and len(devices) < cp + decode:
        need = f"{cp} prefill ranks and {decode} decode engines need {cp + decode} CUDA devices"
        reason = f"{need}, and {len(devices)} can be seen"
        bad.append(
            Violation("--gpu", ",".join(devices), reason, "fewer of them, or --cpu on a machine without CUDA")
        )
    if bad:
        raise ContractError(bad)
    pool = max_total_tokens
    if pool is None and on_cpu:
        pool = _whole(2 * context_length, unit=pool_unit(cp))
    if pool is not None:
        pages_of_pool(pool, ranks=cp, field="--max-total-tokens")
    return StackOptions(
        model=model,
        cp=cp,
        decode=decode,
        layout=layout,
        split=split,
        chunk=chunk,
        context_length=context_length,
        max_total_tokens=pool,
        decode_max_total_tokens=_whole(2 * context_length, unit=PAGE_SIZE) if on_cpu else None,
        cpu=on_cpu,
        devices=() if on_cpu else tuple(devices),
        host=host,
        prefill_args=tuple(prefill_args),
        decode_args=tuple(decode_args),
        folder=folder,
    )


def _whole(tokens: int, *, unit: int) -> int:
    """`tokens`, rounded up to whole units."""
    return -(-tokens // unit) * unit


def _choice(field: str, value: str, known: Sequence[str]) -> list[Violation]:
    if value in known:
        return []
    return [Violation(field, value, "not one of the choices", nearest(value, known) or " or ".join(known))]


def _between(field: str, value: int, least: int, most: int, what: str) -> list[Violation]:
    if least <= value <= most:
        return []
    return [Violation(field, value, f"{what}: {least} to {most}", f"a number from {least} to {most}")]
