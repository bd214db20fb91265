"""The flags and environment of one engine process, as data: the one source for `plait up` and for pods.

What is put together here is given to `python -m plait.engine`, which checks it again before torch is
imported. Nothing here looks at the machine: paths are texts, and may be those of another host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CPU_FLAGS = (
    "--device", "cpu",
    "--sampling-backend", "pytorch",
    "--grammar-backend", "none",
    "--disable-custom-all-reduce",
    "--mem-fraction-static", "0.2",
)  # fmt: skip
COMMON_FLAGS = (
    "--attention-backend", "dsa",
    "--page-size", "64",
    "--skip-server-warmup",
    "--sleep-on-idle",
    # The status is polled several times a second: an access line for each would bury what matters.
    "--log-level-http", "warning",
)  # fmt: skip
# On prefill neither graphs nor overlap are shown with page owners; on a CPU there is nothing to capture, and
# no stream to overlap with.
EAGER_FLAGS = ("--disable-cuda-graph", "--disable-overlap-schedule")


class LaunchData(NamedTuple):
    """Flags of the stock server in order, and the variables to set beside those that are there already."""

    flags: list[str]
    env: dict[str, str]


def prefill_data(
    *,
    model: str,
    served_name: str,
    host: str,
    port: int,
    bootstrap_port: int,
    cp: int,
    layout: str,
    split: str,
    chunk: int,
    max_total_tokens: int | None,
    context_length: int | None,
    state_dir: str,
    transfer: str,
    cpu: bool,
    offline: bool = True,
) -> LaunchData:
    """A context-parallel prefill engine of `cp` ranks that chunks prompts by `chunk` tokens.

    `model`: a folder, or a hub's repository (then `offline` is False). `max_total_tokens` None: the engine
    makes its KV pool as large as the memory allows. `context_length` None: the model's own.
    """
    flags = [
        *_base(model, served_name, host=host, port=port, context_length=context_length, cpu=cpu),
        *EAGER_FLAGS,
        *_pool(max_total_tokens),
        "--chunked-prefill-size", str(chunk),
        "--disaggregation-mode", "prefill",
        "--disaggregation-transfer-backend", transfer,
        "--disaggregation-bootstrap-port", str(bootstrap_port),
        "--tp-size", str(cp),
        "--attn-cp-size", str(cp),
        "--enable-prefill-cp",
        "--cp-strategy", "interleave",
    ]  # fmt: skip
    variables = {
        "PLAIT_LAYOUT": layout,
        "PLAIT_SPLIT": split,
        "PLAIT_STATE_DIR": state_dir,
        **environment(cpu=cpu, ranks=cp, offline=offline),
    }
    return LaunchData(flags, variables)


def decode_data(
    *,
    model: str,
    served_name: str,
    host: str,
    port: int,
    max_total_tokens: int | None,
    context_length: int | None,
    state_dir: str,
    transfer: str,
    cpu: bool,
    offline: bool = True,
) -> LaunchData:
    """A decode engine: not context-parallel, plain full pages. Arguments are as for prefill.

    On GPUs decode keeps the engine's own CUDA graphs and overlap scheduler.
    """
    flags = [
        *_base(model, served_name, host=host, port=port, context_length=context_length, cpu=cpu),
        *(EAGER_FLAGS if cpu else ()),
        *_pool(max_total_tokens),
        "--disaggregation-mode", "decode",
        "--disaggregation-transfer-backend", transfer,
    ]  # fmt: skip
    variables = {
        "PLAIT_LAYOUT": "plain",
        "PLAIT_STATE_DIR": state_dir,
        **environment(cpu=cpu, ranks=1, offline=offline),
    }
    return LaunchData(flags, variables)


def host_flags(*, hosts: int, rank: str, leader: str) -> list[str]:
    """Flags of one of the `hosts` that an engine spans: its number, and the leader's HOST:PORT.

    `rank` and `leader` are texts, since a pod learns them from its environment only when it starts.
    """
    return ["--nnodes", str(hosts), "--node-rank", rank, "--dist-init-addr", leader]


def environment(*, cpu: bool, ranks: int, offline: bool = True) -> dict[str, str]:
    """Variables of the stock engine. `offline`: the model is on disk, and no hub is asked."""
    variables = {
        # The health route would otherwise generate a token, which means a prefill of one.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    }
    if offline:
        variables |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
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


def _base(
    model: str, served_name: str, *, host: str, port: int, context_length: int | None, cpu: bool
) -> Sequence[str]:
    return [
        "--model-path", model,
        "--served-model-name", served_name,
        "--host", host,
        "--port", str(port),
        *(() if context_length is None else ("--context-length", str(context_length))),
        *COMMON_FLAGS,
        *(CPU_FLAGS if cpu else ()),
    ]  # fmt: skip


def _pool(tokens: int | None) -> list[str]:
    return [] if tokens is None else ["--max-total-tokens", str(tokens)]
