"""Shared against replicated on real GPUs: one prefill group each, FP8 pages, the same prompts, first tokens.

    python3 tests/gpu/layouts_on_gpus.py --cp 2 --backend flashmla_kv --out result.json

Starts both groups through `plait.engine.launch` (on GPUs 0..N-1 and N..2N-1 where there are as many, else one
after the other), asks both for the first token of the same prompts, and compares ids and top-5 logprobs.
The requests name the engine's fake decode host, so that no decode engine and no network is needed.
The replicated group is asked twice, to know its own run-to-run spread. Needs only what an engine needs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from tests.gpu.cache_flags import CACHES, PREFILL_BACKENDS, cache_flags
from tests.gpu.one_gpu import one_gpu

from plait.engine.launch import prefill_launch
from plait.model.shape import TinyShape
from plait.model.write import write_tiny

FAKE_DECODE_HOST = "2.2.2.2"
START_WITHIN_S = 240.0
FIRST_ANSWER_WITHIN_S = 240.0
LENGTHS = (1, 5, 63, 64, 65, 127, 128, 129, 192, 300, 640, 1000, 2048, 2049, 5000, 9000)


class Group(NamedTuple):
    name: str
    url: str
    log: Path
    process: subprocess.Popen[bytes]


def start(
    name: str, model: Path, folder: Path, args: argparse.Namespace, devices: list[int], port: int
) -> Group:
    flags, env = one_gpu(args.cp, nccl=args.one_gpu) if args.one_gpu else ((), {})
    launch = prefill_launch(
        model=model,
        host="127.0.0.1",
        port=port,
        bootstrap_port=port + 1,
        cp=args.cp,
        layout=name,
        split=args.split,
        chunk=args.chunk,
        max_total_tokens=65536,
        context_length=16384,
        state_dir=folder / name,
        transfer="mooncake_tcp",
        cpu=False,
        extra=[
            *cache_flags(args.kv, args.backend),
            *("--mem-fraction-static", "0.6" if args.one_gpu else "0.5"),
            *flags,
        ],
        env={
            "SGLANG_DSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD": "0",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)),
            "PLAIT_DEBUG_CHECKS": "1" if args.checks else "0",
            **env,
        },
    )
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            launch.argv, env={**os.environ, **launch.env}, stdout=out, stderr=out, start_new_session=True
        )
    return Group(name, f"http://127.0.0.1:{port}", log, process)


def wait(group: Group) -> None:
    deadline = time.time() + START_WITHIN_S
    while "fired up" not in group.log.read_text(errors="replace"):
        if group.process.poll() is not None or time.time() > deadline:
            raise SystemExit(f"{group.name} did not start:\n{tail(group)}")
        time.sleep(0.5)


def tail(group: Group, lines: int = 60) -> str:
    return "\n".join(group.log.read_text(errors="replace").splitlines()[-lines:])


def stop(group: Group) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group.process.pid, signal.SIGKILL)


def ask(group: Group, prompts: list[list[int]], *, timeout: float) -> list[dict[str, Any]]:
    body = {
        "input_ids": prompts,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 5,
        "logprob_start_len": -1,
        "bootstrap_host": [FAKE_DECODE_HOST] * len(prompts),
        "bootstrap_port": [None] * len(prompts),
        "bootstrap_room": [random.getrandbits(40) for _ in prompts],
    }
    request = urllib.request.Request(
        f"{group.url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        answers = json.load(urllib.request.urlopen(request, timeout=timeout))
    except Exception as error:
        raise SystemExit(f"{group.name} did not answer ({error}):\n{tail(group)}") from error
    return [
        {
            "id": one["output_ids"][0],
            "top": [[token, value] for value, token, _ in one["meta_info"]["output_top_logprobs"][0]],
            "cached": one["meta_info"]["cached_tokens"],
        }
        for one in answers
    ]


def spread(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Largest difference of the logprobs of tokens in both lists; infinity if the lists share none."""
    a, b = dict(map(tuple, one["top"])), dict(map(tuple, other["top"]))
    common = set(a) & set(b)
    return max((abs(a[token] - b[token]) for token in common), default=float("inf"))


def cases() -> list[tuple[str, list[list[int]]]]:
    chosen = random.Random(1)

    def prompt(tokens: int) -> list[int]:
        return [chosen.randrange(5, 500) for _ in range(tokens)]

    found = [(f"{tokens} tokens", [prompt(tokens)]) for tokens in LENGTHS]
    base = prompt(6000)
    found.append(("base", [base]))
    found += [(f"hit of {n}", [base[:n] + prompt(200)]) for n in (64, 640, 4096, 5952)]
    found.append(("batch", [prompt(n) for n in (700, 130, 1500)]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cp", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--split", default="page-interleave")
    parser.add_argument("--backend", default="flashmla_kv", choices=PREFILL_BACKENDS)
    parser.add_argument("--kv", default="fp8_e4m3", choices=CACHES, help="of the cache")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--port", type=int, default=31000, help="the first of 200 that are taken")
    parser.add_argument(
        "--one-gpu", metavar="NCCL", help="all ranks on GPU 0, with this NCCL library (2.30 or newer)"
    )
    parser.add_argument("--checks", action="store_true", help="poison the scratch and check owners")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/plait-gpu"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    model = args.folder / "model"
    shape = TinyShape(topk=2048, index_heads=32, heads=64, hidden=1024, q_lora_rank=512, context=16384)
    write_tiny(model, shape)
    both = args.gpus >= 2 * args.cp or args.one_gpu is not None
    answers: dict[str, list[list[dict[str, Any]]]] = {}
    groups: list[Group] = []
    try:
        for index, name in enumerate(("replicated", "shared")):
            first = index * args.cp if both else 0
            group = start(
                name, model, args.folder, args, list(range(first, first + args.cp)), args.port + 100 * index
            )
            groups.append(group)
            if not both:
                answers |= run(group)
                stop(group)
                time.sleep(3)
        if both:
            for group in groups:
                answers |= run(group)
    finally:
        for group in groups:
            stop(group)
    report(answers, args)


def run(group: Group) -> dict[str, list[list[dict[str, Any]]]]:
    """Answers of one group: cold and cached cases; the replicated group is asked twice."""
    began = time.time()
    wait(group)
    print(f"{group.name}: up after {time.time() - began:.0f} s", flush=True)
    ask(group, [[7] * 256], timeout=FIRST_ANSWER_WITHIN_S)
    print(f"{group.name}: first answer after {time.time() - began:.0f} s", flush=True)
    told = {}
    for again in ("", " again") if group.name == "replicated" else ("",):
        urllib.request.urlopen(f"{group.url}/flush_cache", timeout=30)
        told[group.name + again] = [ask(group, prompts, timeout=60) for _, prompts in cases()]
    status = json.load(urllib.request.urlopen(f"{group.url}/plait/status", timeout=10))
    for rank in status["ranks"]:
        print(group.name, rank["rank"], rank["bytes"], rank["gather"], rank["split"], flush=True)
    return told


def report(answers: dict[str, list[list[dict[str, Any]]]], args: argparse.Namespace) -> None:
    rows = []
    for index, (name, prompts) in enumerate(cases()):
        for position in range(len(prompts)):
            reference = answers["replicated"][index][position]
            again = answers["replicated again"][index][position]
            shared = answers["shared"][index][position]
            rows.append(
                {
                    "case": f"{name}[{position}]",
                    "own_spread": spread(reference, again),
                    "shared": spread(reference, shared),
                    "same_id": reference["id"] == shared["id"],
                    "cached": [reference["cached"], shared["cached"]],
                }
            )
            print(rows[-1], flush=True)
    result = {
        "cp": args.cp,
        "backend": args.backend,
        "kv": args.kv,
        "chunk": args.chunk,
        "worst_shared": max(row["shared"] for row in rows),
        "worst_own": max(row["own_spread"] for row in rows),
        "rows": rows,
    }
    args.out.write_text(json.dumps(result, indent=1))
    print(json.dumps({k: v for k, v in result.items() if k != "rows"}), flush=True)
    if any(row["shared"] > row["own_spread"] or not row["same_id"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
