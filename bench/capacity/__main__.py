"""`python -m bench.capacity`: writes docs/figures/capacity.json, and ends with 1 where the bound is missed.

    --shared FILE --replicated FILE  what two engines answered at GET /plait/status: a measured start is added
    --machine TEXT                   where they ran
    --out FILE                       another place

A measured start that the file has already stays in it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.capacity import plan
from bench.capacity.measured import MismatchError, measured
from bench.router.figures import write

from plait.contract.gpu_memory import GPU_MEMORY
from plait.contract.status import EngineStatus

OUT = Path(__file__).parents[2] / "docs/figures/capacity.json"
_NOTE = (
    "Arithmetic of plait.contract.capacity; nothing was run for the rows. ratio: tokens of a shared group "
    "over ranks x tokens of a stock rank, with kv_bytes on each GPU for both; the shared one pays for its "
    "dense slots, exchange buffers and rounding (aside_bytes) out of them. capacity_ratio: the least with a "
    "dense budget of 128K. GLM-5's FP8 weights do not fit four such GPUs: four ranks are reckoned with the "
    "cache memory of eight (kv_bytes_from). Buffers of NCCL and activations are not counted: they lie in the "
    "engine's reserve."
)


def report() -> dict[str, Any]:
    """All that is arithmetic: the same on every machine."""
    told = plan.rows()
    layers, row = plan.size()
    return {
        "command": "python -m bench.capacity",
        "note": _NOTE,
        "model": plan.MODEL,
        "layers": layers,
        "row_bytes": row,
        "gpu": plan.GPU,
        "gpu_bytes": GPU_MEMORY[plan.GPU],
        "chunk": plan.CHUNK,
        "bound": plan.BOUND,
        "capacity_ratio": plan.headline(told),
        "memory": [{**plan.memory(ranks)._asdict(), "fits": plan.memory(ranks).fits} for ranks in plan.RANKS],
        "rows": [each._asdict() for each in told],
    }


def main(words: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.capacity")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--replicated", type=Path)
    parser.add_argument("--machine", default="")
    told = parser.parse_args(words)
    if (told.shared is None) != (told.replicated is None):
        parser.error("--shared and --replicated go together")
    figures = report()
    if told.shared is not None:
        pair = [EngineStatus.model_validate_json(p.read_text()) for p in (told.shared, told.replicated)]
        try:
            figures["measured"] = {"machine": told.machine, **measured(*pair)._asdict()}
        except MismatchError as error:
            parser.error(str(error))
    elif told.out.exists() and (before := json.loads(told.out.read_text()).get("measured")):
        figures["measured"] = before
    write(told.out, figures)
    for row in figures["rows"]:
        print(
            f"{row['ranks']} ranks, {row['gather']:<10}  dense {row['dense_tokens']:>6}: "
            f"{row['shared_tokens']:>8} of {row['ranks']} x {row['stock_tokens']} tokens, {row['ratio']:.4f}"
        )
    kept = figures["capacity_ratio"] >= plan.BOUND
    print(f"capacity_ratio {figures['capacity_ratio']}: {'at least' if kept else 'BELOW'} {plan.BOUND}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
