"""The gather on real GPUs, one process a GPU: bytes of random cases on every path, then times beside NCCL.

    python3 tests/gpu/gather_on_gpus.py --ranks 2 --part correctness --out cases.json
    python3 tests/gpu/gather_on_gpus.py --ranks 2 --part timing --out timing.json
    python3 tests/gpu/gather_on_gpus.py --ranks 2 --part correctness --break no-fork --out broken.json

Exit status 1 if any byte is wrong, a rank fails or the limit passes. `--break` puts a fault in on purpose
(no-fork: copies do not wait for a slot's readers; no-barrier: nobody waits for writers) and must end with 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any


def main() -> int:
    args = arguments()
    started = time.time()
    with tempfile.TemporaryDirectory(prefix="gather") as name:
        folder = Path(name)
        context = mp.get_context("spawn")
        processes = [
            context.Process(target=rank_main, args=(rank, vars(args), name), daemon=True)
            for rank in range(args.ranks)
        ]
        for process in processes:
            process.start()
        failed = False
        while any(process.is_alive() for process in processes):
            over = time.time() - started > args.limit_s
            failed = failed or over or any(process.exitcode for process in processes)
            if failed:
                # The others wait for a rank that is gone: give them a moment to say so, then end them.
                time.sleep(0 if over else 3)
                for process in processes:
                    process.kill()
                break
            time.sleep(0.2)
        for process in processes:
            process.join()
        failed = failed or any(process.exitcode for process in processes)
        results = [
            json.loads(path.read_text()) if path.exists() else {"rank": rank, "error": "ended without a word"}
            for rank, path in ((rank, folder / f"{rank}.json") for rank in range(args.ranks))
        ]
    told: dict[str, Any] = {
        "command": f"tests/gpu/gather_on_gpus.py --ranks {args.ranks} --part {args.part}",
        "ok": not failed,
        "seconds": round(time.time() - started, 1),
        **results[0],
    }
    errors = {str(one["rank"]): one["error"] for one in results if "error" in one}
    if errors:
        told["errors"] = errors
    Path(args.out).write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps({key: value for key, value in told.items() if key != "errors"}, indent=1)[:9000])
    for rank, error in errors.items():
        print(f"rank {rank}: {error[-1500:]}")
    print("OK" if not failed else "FAILED")
    return int(failed)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--part", choices=("correctness", "timing"), required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--big-cases", type=int, default=8)
    parser.add_argument("--break", dest="broken", choices=("no-fork", "no-barrier"), default="")
    parser.add_argument("--limit-s", type=float, default=140.0)
    return parser.parse_args()


def rank_main(rank: int, args: dict[str, Any], folder: str) -> None:
    # Imports here: a spawned process must know its device before torch looks at any.
    import torch
    import torch.distributed as dist

    told: dict[str, Any] = {"rank": rank}
    try:
        if torch.cuda.device_count() < args["ranks"]:
            raise RuntimeError(
                f"{args['ranks']} ranks need as many GPUs, here are {torch.cuda.device_count()}"
            )
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl",
            store=dist.FileStore(f"{folder}/store", args["ranks"]),
            rank=rank,
            world_size=args["ranks"],
            device_id=device,
        )
        told["device"] = torch.cuda.get_device_name(device)
        told["torch"] = torch.__version__
        if args["part"] == "correctness":
            told |= correctness(rank, args, Path(folder), device)
        else:
            from bench.gather.timing import time_paths

            told |= time_paths(rank, args["ranks"], device, Path(folder))
    except BaseException:
        told["error"] = traceback.format_exc()
    Path(folder, f"{rank}.json").write_text(json.dumps(told))
    if "error" in told:
        os._exit(1)  # a device that trapped cannot be torn down in order
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


def correctness(rank: int, args: dict[str, Any], folder: Path, device: Any) -> dict[str, Any]:
    import torch
    from tests.gpu.gather_cases import INDEX, KINDS, MLA_FP8, Group, Place, run_cases

    told: dict[str, Any] = {}
    for name, stripes, kinds, cases, slow in (
        ("small", 24, KINDS, args["cases"], True),
        ("large", 8192 // args["ranks"] + 64, (MLA_FP8, INDEX), args["big_cases"], False),
    ):
        started = time.time()
        place = Place(rank, args["ranks"], device, folder / name)
        group = Group(place, stripes=stripes, kinds=kinds, broken=args["broken"])
        torch.cuda.synchronize()
        told[name] = run_cases(group, cases=cases, seed=stripes, slow=slow)
        told[name]["seconds"] = round(time.time() - started, 1)
        group.close()
        torch.cuda.empty_cache()
    return told


if __name__ == "__main__":
    raise SystemExit(main())
