"""Prefill to decode on real GPUs, shared against replicated: hits, chunks, batches, over mooncake.

    python3 tests/gpu/pairs_on_gpus.py --cp 2 --out result.json

One stack at a time, a shared one for each way of gathering: a prefill group on GPUs 0..N-1, one decode
engine on GPU N or, with --share-gpu, on the group's last GPU. Every case is asked as a prefill -> decode
pair: the first token is prefill's, the others decode's from the pages it received. With --checks the
scratch is poisoned, owners are checked, and both engines begin a case's prompts together, whatever the
timing.

The replicated stack is asked twice, each time with an empty cache. Where it repeats itself to the last bit,
shared must equal it to the last bit (else: ends with 1); where it does not, both spreads are told. Needs only
what an engine needs.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.gpu.cache_flags import CACHES, PREFILL_BACKENDS, cache_flags
from tests.gpu.one_gpu import one_gpu

from plait.engine.launch import EngineLaunch, decode_launch, prefill_launch
from plait.model.shape import TinyShape
from plait.model.write import write_tiny

PREFILL_PORT, BOOTSTRAP_PORT, DECODE_PORT = 31000, 31001, 31100
START_WITHIN_S = 240.0
CONTEXT = 16384
NEW = 8
TOP = 5
Prompt = list[int]


class Case(NamedTuple):
    """Prompts that are asked together. `cached`: tokens of each that must come from the cache."""

    name: str
    prompts: list[Prompt]
    cached: tuple[int, ...] = (0,)


def cases(*, chunk: int) -> list[Case]:
    """Cold lengths around pages and chunks, then hits of every kind, then mixed batches."""
    chosen = random.Random(1)

    def prompt(tokens: int) -> Prompt:
        return [chosen.randrange(5, 500) for _ in range(tokens)]

    lengths = (1, 5, 63, 64, 65, 128, 129, 300, chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 65, 2000)
    found = [Case(f"cold {n}", [prompt(n)]) for n in lengths]
    base = prompt(1900)
    found.append(Case("base 1900", [base]))
    for hit in (64, 128, 192, 640, chunk, 1280, 1856):
        found += [Case(f"hit {hit} + {n}", [base[:hit] + prompt(n)], (hit,)) for n in (1, 64, 130)]
    found.append(Case("hit all", [base], (1856,)))
    found.append(Case("cold batch", [prompt(n) for n in (700, 130, 1, 64, 1500)], (0,) * 5))
    mixed = [prompt(300), base[:640] + prompt(77), prompt(5), base[:64] + prompt(9)]
    found.append(Case("mixed batch", mixed, (0, 640, 0, 64)))
    long = prompt(9000)
    found.append(Case("long cold 9000", [long]))
    found += [Case(f"long hit {hit}", [long[:hit] + prompt(700)], (hit,)) for hit in (4096, 8960)]
    return found


class Running(NamedTuple):
    name: str
    url: str
    log: Path
    state: Path
    process: subprocess.Popen[bytes]


def start(
    name: str, launch: EngineLaunch, url: str, folder: Path, devices: list[int], *, state: str
) -> Running:
    """An engine whose name is that of its folder; in it the engine makes one of its own for its state."""
    log = folder / f"{name}.log"
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)), **launch.env}
    with log.open("wb") as out:
        process = subprocess.Popen(launch.argv, env=env, stdout=out, stderr=out, start_new_session=True)
    return Running(name, url, log, folder / name / state, process)


def wait(engine: Running) -> None:
    deadline = time.time() + START_WITHIN_S
    while "fired up" not in engine.log.read_text(errors="replace"):
        if engine.process.poll() is not None or time.time() > deadline:
            raise SystemExit(f"{engine.name} did not start:\n{tail(engine)}")
        time.sleep(0.5)


def tail(engine: Running, lines: int = 70) -> str:
    return "\n".join(engine.log.read_text(errors="replace").splitlines()[-lines:])


def stop(engines: list[Running]) -> None:
    for engine in engines:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.process.pid, signal.SIGKILL)
    for engine in engines:
        engine.process.wait()


def post(engine: Running, body: dict[str, Any], timeout: float) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{engine.url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        answer: dict[str, Any] = json.load(urllib.request.urlopen(request, timeout=timeout))
    except Exception as error:
        raise SystemExit(f"{engine.name} did not answer ({error}):\n{tail(engine)}") from error
    return answer


@contextlib.contextmanager
def held(stack: list[Running], count: int, *, on: bool) -> Iterator[None]:
    """The engines begin nothing in this block, and end it once each of them has `count` prompts to begin."""
    if on:
        for engine in stack:
            (engine.state / "held.json").unlink(missing_ok=True)
            (engine.state / "hold").touch()
    yield
    for engine in stack if on else ():
        told, deadline = engine.state / "held.json", time.time() + 30
        while not told.exists() or told.read_text() != str(count):
            if time.time() > deadline:
                raise SystemExit(f"{engine.name}: {count} prompts did not arrive\n{tail(engine)}")
            time.sleep(0.02)
        (engine.state / "hold").unlink()


def ask(
    stack: list[Running], prompts: list[Prompt], *, hold: bool, timeout: float = 60
) -> list[dict[str, Any]]:
    """All prompts at once, each as a pair of legs; decode's answer and prefill's cached tokens."""
    with ThreadPoolExecutor(2 * len(prompts)) as pool, held(stack, len(prompts), on=hold):
        legs = []
        for prompt in prompts:
            body = {
                "input_ids": prompt,
                "sampling_params": {"max_new_tokens": NEW, "temperature": 0, "ignore_eos": True},
                "return_logprob": True,
                "top_logprobs_num": TOP,
                "logprob_start_len": -1,
                "bootstrap_host": "127.0.0.1",
                "bootstrap_port": BOOTSTRAP_PORT,
                "bootstrap_room": random.getrandbits(60),
            }
            # Equal order in the queues of both rounds: prompts of one batch are told apart by their rid.
            body["rid"] = f"{len(legs):03d}-{body['bootstrap_room']:x}"
            legs.append([pool.submit(post, engine, body, timeout) for engine in stack])
    told = [[leg.result() for leg in pair] for pair in legs]
    return [
        {
            "ids": decode["output_ids"],
            "top": [
                [[token, value] for value, token, _ in one]
                for one in decode["meta_info"]["output_top_logprobs"]
            ],
            "cached": prefill["meta_info"]["cached_tokens"],
        }
        for prefill, decode in told
    ]


def launches(
    layout: str, way: str, model: Path, folder: Path, args: argparse.Namespace
) -> tuple[EngineLaunch, EngineLaunch]:
    common = [
        *cache_flags(args.kv, args.backend),
        *("--mem-fraction-static", "0.3", "--random-seed", "1"),
    ]
    env = {
        "SGLANG_DSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD": "0",
        "PLAIT_DEBUG_CHECKS": "1" if args.checks else "0",
        "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65536",
    }
    flags, one = one_gpu(args.cp, nccl=args.one_gpu) if args.one_gpu else ((), {})
    name = f"{layout}-{way}"
    prefill = prefill_launch(
        model=model,
        host="127.0.0.1",
        port=PREFILL_PORT,
        bootstrap_port=BOOTSTRAP_PORT,
        cp=args.cp,
        layout=layout,
        split=args.split,
        chunk=args.chunk,
        max_total_tokens=65536,
        context_length=CONTEXT,
        state_dir=folder / f"{name}-prefill",
        cpu=False,
        extra=[*common, *flags],
        env={**env, **one, "PLAIT_GATHER_PATH": way},
    )
    decode = decode_launch(
        model=model,
        host="127.0.0.1",
        port=DECODE_PORT,
        index=0,
        max_total_tokens=65536,
        context_length=CONTEXT,
        state_dir=folder / f"{name}-decode",
        cpu=False,
        extra=[*common, "--disable-cuda-graph"],
        env=env,
    )
    return prefill, decode


def run(layout: str, way: str, model: Path, args: argparse.Namespace) -> list[list[list[dict[str, Any]]]]:
    """Answers of one stack, by round, case and prompt; the replicated one gives two rounds."""
    began = time.time()
    prefill, decode = launches(layout, way, model, args.folder, args)
    name = f"{layout}-{way}"
    group = list(range(args.cp))
    stack = [
        start(
            f"{name}-prefill",
            prefill,
            f"http://127.0.0.1:{PREFILL_PORT}",
            args.folder,
            group,
            state=f"prefill-{PREFILL_PORT}",
        ),
        start(
            f"{name}-decode",
            decode,
            f"http://127.0.0.1:{DECODE_PORT}",
            args.folder,
            [0 if args.one_gpu else args.cp - 1 if args.share_gpu else args.cp],
            state=f"decode-{DECODE_PORT}",
        ),
    ]
    try:
        for engine in stack:
            wait(engine)
        print(f"{name}: up after {time.time() - began:.0f} s", flush=True)
        ask(stack, [[7] * 256], hold=False, timeout=200)
        print(f"{name}: first answer after {time.time() - began:.0f} s", flush=True)
        told = []
        for _ in range(2 if layout == "replicated" else 1):
            time.sleep(1)
            for engine in stack:
                urllib.request.urlopen(f"{engine.url}/flush_cache", timeout=30)
            told.append([ask(stack, case.prompts, hold=args.checks) for case in cases(chunk=args.chunk)])
        status = json.load(urllib.request.urlopen(f"{stack[0].url}/plait/status", timeout=10))
        for rank in status["ranks"]:
            print(name, rank["rank"], rank["gather"], rank["peers"], rank["integrity"], flush=True)
        print(f"{name}: done after {time.time() - began:.0f} s", flush=True)
        return told
    except SystemExit:
        for engine in stack:
            print(f"--- {engine.name}\n{tail(engine)}", flush=True)
        raise
    finally:
        stop(stack)


def spread(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Largest difference of logprobs of tokens that both list, up to and with the first differing id."""
    worst = 0.0
    for index, (a, b) in enumerate(zip(one["top"], other["top"], strict=True)):
        left, right = dict(map(tuple, a)), dict(map(tuple, b))
        common = set(left) & set(right)
        worst = max(worst, max((abs(left[t] - right[t]) for t in common), default=float("inf")))
        if one["ids"][index] != other["ids"][index]:
            break
    return worst


def report(answers: dict[str, list[list[list[dict[str, Any]]]]], args: argparse.Namespace) -> int:
    """answers: of `replicated` two rounds, of each way of the shared layout one."""
    rows = []
    first, again = answers["replicated"]
    ways = {way: rounds[0] for way, rounds in answers.items() if way != "replicated"}
    wrong = []
    for index, case in enumerate(cases(chunk=args.chunk)):
        for position in range(len(case.prompts)):
            own = [round[index][position] for round in (first, again)]
            shared = {way: round[index][position] for way, round in ways.items()}
            row = {
                "case": f"{case.name}[{position}]",
                "own_spread": spread(*own),
                "own_ids": own[0]["ids"] == own[1]["ids"],
                "shared": {way: spread(own[0], told) for way, told in shared.items()},
                "shared_ids": {way: own[0]["ids"] == told["ids"] for way, told in shared.items()},
                "cached": sorted({told["cached"] for told in (*own, *shared.values())}),
                "wanted_cached": case.cached[position],
            }
            rows.append(row)
            exact = row["own_ids"] and row["own_spread"] == 0.0
            equal = all(row["shared_ids"].values()) and not any(row["shared"].values())
            if (exact and not equal) or row["cached"] != [row["wanted_cached"]]:
                wrong.append(row["case"])
                print(json.dumps(row), flush=True)
    exact_rows = [row for row in rows if row["own_ids"] and row["own_spread"] == 0.0]
    result = {
        "cp": args.cp,
        "backend": args.backend,
        "kv": args.kv,
        "chunk": args.chunk,
        "split": args.split,
        "checks": args.checks,
        "decode_shares_gpu": args.share_gpu or bool(args.one_gpu),
        "all_on_one_gpu": bool(args.one_gpu),
        "cases": len(rows),
        "exact_in_replicated": len(exact_rows),
        "exact_in_shared": {
            way: sum(row["shared"][way] == 0.0 and row["shared_ids"][way] for row in exact_rows)
            for way in ways
        },
        "wrong": wrong,
        "worst_own_spread": max(row["own_spread"] for row in rows),
        "worst_shared": {way: max(row["shared"][way] for row in rows) for way in ways},
        "rows": rows,
    }
    args.out.write_text(json.dumps(result, indent=1))
    print(json.dumps({k: v for k, v in result.items() if k != "rows"}), flush=True)
    return 1 if wrong else 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cp", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--split", default="page-interleave")
    parser.add_argument("--backend", default="flashmla_kv", choices=PREFILL_BACKENDS)
    parser.add_argument("--kv", default="fp8_e4m3", choices=CACHES, help="of the cache")
    parser.add_argument("--share-gpu", action="store_true", help="decode on the group's last GPU")
    parser.add_argument(
        "--one-gpu", metavar="NCCL", help="all of it on GPU 0, with this NCCL library (2.30 or newer)"
    )
    parser.add_argument("--checks", action="store_true", help="poison the scratch and check owners")
    parser.add_argument("--ways", default="auto,copy", help="PLAIT_GATHER_PATH of each shared stack")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/plait-gpu-pairs"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    model = args.folder / "model"
    shape = TinyShape(topk=2048, index_heads=32, heads=64, hidden=1024, q_lora_rank=512, context=CONTEXT)
    write_tiny(model, shape)
    # A limit of the caller's ends it as an error would: no engine is left behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"ended by signal {number}"))
    answers = {"replicated": run("replicated", "auto", model, args)}
    status = 0
    for way in args.ways.split(","):
        answers[way] = run("shared", way, model, args)
        status = report(answers, args)  # after each, so that what was measured is not lost
    sys.exit(status)


if __name__ == "__main__":
    main()
