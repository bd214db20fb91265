"""The command line and environment of one engine process, as data. No sglang here.

`prefill_launch` and `decode_launch` are what `plait up` starts and what a pod runs; both go through
`python -m plait.engine`, which refuses what Plait cannot serve before torch is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CPU_FLAGS = (
    "--device", "cpu",
    "--sampling-backend", "pytorch",
    "--grammar-backend", "none",
    "--disable-custom-all-reduce",
    "--mem-fraction-static", "0.2",
)  # fmt: skip
_COMMON_FLAGS = (
    "--attention-backend", "dsa",
    "--page-size", "64",
    "--skip-server-warmup",
    "--sleep-on-idle",
    # The status is polled several times a second: an access line for each would bury what matters.
    "--log-level-http", "warning",
)  # fmt: skip
# On prefill neither graphs nor overlap are shown with page owners; on a CPU there is nothing to capture, and
# no stream to overlap with.
_EAGER_FLAGS = ("--disable-cuda-graph", "--disable-overlap-schedule")


class EngineLaunch(NamedTuple):
    """How to start one engine: `argv`, and the variables to set beside the parent's own."""

    argv: list[str]
    env: dict[str, str]


def prefill_launch(
    *,
    model: Path,
    host: str,
    port: int,
    bootstrap_port: int,
    cp: int,
    layout: str,
    split: str,
    chunk: int,
    max_total_tokens: int | None,
    context_length: int,
    state_dir: Path,
    transfer: str = "mooncake_tcp",
    cpu: bool = True,
    extra: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> EngineLaunch:
    """A context-parallel prefill engine of `cp` ranks that chunks prompts by `chunk` tokens.

    `max_total_tokens` None: the engine makes its KV pool as large as the memory allows.
    """
    flags = [
        *_base(model=model, host=host, port=port, context_length=context_length, cpu=cpu),
        *_EAGER_FLAGS,
        *_pool(max_total_tokens),
        "--chunked-prefill-size", str(chunk),
        "--disaggregation-mode", "prefill",
        "--disaggregation-transfer-backend", transfer,
        "--disaggregation-bootstrap-port", str(bootstrap_port),
        "--tp-size", str(cp),
        "--attn-cp-size", str(cp),
        "--enable-prefill-cp",
        "--cp-strategy", "interleave",
        *extra,
    ]  # fmt: skip
    variables = {
        "PLAIT_LAYOUT": layout,
        "PLAIT_SPLIT": split,
        "PLAIT_STATE_DIR": str(state_dir),
        **_environment(cpu=cpu, ranks=cp),
        **(env or {}),
    }
    return EngineLaunch(_argv(flags), variables)


def decode_launch(
    *,
    model: Path,
    host: str,
    port: int,
    index: int,
    max_total_tokens: int | None,
    context_length: int,
    state_dir: Path,
    transfer: str = "mooncake_tcp",
    cpu: bool = True,
    extra: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> EngineLaunch:
    """Decode engine number `index`: not context-parallel, plain full pages.

    `max_total_tokens` None: the engine makes its KV pool as large as the memory allows. On GPUs decode keeps
    the engine's own CUDA graphs and overlap scheduler.
    """
    del index  # ports and folders already tell the instances apart
    flags = [
        *_base(model=model, host=host, port=port, context_length=context_length, cpu=cpu),
        *(_EAGER_FLAGS if cpu else ()),
        *_pool(max_total_tokens),
        "--disaggregation-mode", "decode",
        "--disaggregation-transfer-backend", transfer,
        *extra,
    ]  # fmt: skip
    variables = {
        "PLAIT_LAYOUT": "plain",
        "PLAIT_STATE_DIR": str(state_dir),
        **_environment(cpu=cpu, ranks=1),
        **(env or {}),
    }
    return EngineLaunch(_argv(flags), variables)


def _base(*, model: Path, host: str, port: int, context_length: int, cpu: bool) -> list[str]:
    return [
        "--model-path", str(model),
        "--served-model-name", model.resolve().name,
        "--host", host,
        "--port", str(port),
        "--context-length", str(context_length),
        *_COMMON_FLAGS,
        *(CPU_FLAGS if cpu else ()),
    ]  # fmt: skip


def _pool(tokens: int | None) -> list[str]:
    return [] if tokens is None else ["--max-total-tokens", str(tokens)]


def _argv(flags: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "plait.engine", *flags]


def _environment(*, cpu: bool, ranks: int) -> dict[str, str]:
    variables = {
        # The health route would otherwise generate a token, which means a prefill of one.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    if cpu:
        variables |= {
            "PLAIT_CPU": "1",
            "TORCHDYNAMO_DISABLE": "1",
            "TRITON_INTERPRET": "1",
            "OMP_NUM_THREADS": "1",
            "SGLANG_USE_CPU_ENGINE": "0",
        }
        if ranks > 1:
            variables["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join("all" for _ in range(ranks))
    return variables
