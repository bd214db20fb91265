"""The contracts of this engine process: what it is, in the terms that router and peers compare."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from typing import Any

import torch

import plait
from plait.contract.kv import GroupContract, WireContract, transfer_backend
from plait.contract.layouts import KvDtype, Role
from plait.engine import state
from plait.engine.check import model_shape

_DTYPES = {
    torch.float8_e4m3fn: KvDtype.FP8_E4M3,
    torch.bfloat16: KvDtype.BF16,
    torch.float32: KvDtype.FP32,
}


def role(arguments: Any) -> Role:
    """What the engine with these ServerArgs is to the stack."""
    mode = arguments.disaggregation_mode
    return Role.UNIFIED if mode == "null" else Role(mode)


@functools.cache
def wire_contract() -> WireContract:
    """The contract between prefill and decode. Only once the KV pool exists."""
    from sglang.srt.runtime_context import get_server_args

    arguments = get_server_args()
    dtype = state.kv_dtype
    if dtype is None or dtype not in _DTYPES:
        raise ValueError(
            f"KV cache dtype is {dtype}: Plait stores {', '.join(k.value for k in KvDtype)} "
            "(--kv-cache-dtype)"
        )
    return WireContract.of(
        model_shape(arguments.model_path, revision=arguments.revision),
        kv_dtype=_DTYPES[dtype],
        transfer_backend=transfer_backend(arguments.disaggregation_transfer_backend, os.environ),
    )


def wire_hash() -> str:
    """Hash that prefill and decode must have in common."""
    return wire_contract().hash


@functools.cache
def group_contract() -> GroupContract:
    """The contract between the ranks of this group."""
    return GroupContract(
        wire=wire_contract(),
        ranks=state.group().ranks,
        split=state.settings.split,
        layout=state.settings.layout,
        engine_version=importlib.metadata.version("sglang"),
        plait_version=plait.__version__,
    )
