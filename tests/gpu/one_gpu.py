"""Ranks of a context-parallel group that share one GPU: for answers, never for times.

A stock engine gives rank r device r. With one visible device per process it picks entry r of
CUDA_VISIBLE_DEVICES itself, so a list that names device 0 for every rank puts all of them there; the -1
between ends the list for the process that starts them, which would refuse a device named twice.

NCCL lets ranks share a GPU from 2.30 on, if told so: such a library takes the place of torch's. Without
CUDA's MPS the ranks take turns on the device, and each collective takes milliseconds of them.
"""

from __future__ import annotations

from typing import NamedTuple


class OneGpu(NamedTuple):
    """flags: of the engine. env: of its process."""

    flags: tuple[str, ...]
    env: dict[str, str]


def one_gpu(ranks: int, *, nccl: str) -> OneGpu:
    """How `ranks` ranks are started on GPU 0 with the NCCL library at `nccl`."""
    return OneGpu(
        flags=("--gpu-id-step", "2"),
        env={
            "CUDA_VISIBLE_DEVICES": ",".join(["0", "-1"] * ranks),
            "SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS": "1",
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            "SGLANG_NCCL_SO_PATH": nccl,
            "LD_PRELOAD": nccl,
        },
    )
