"""The device barrier without a device: what is compiled for one, and what the kernel does when interpreted.

The real thing is shown by tests/gpu/peer_on_gpus.py, its twin in Python by tests/unit/peer/test_barrier.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_under_the_interpreter() -> None:
    # It is chosen before `import triton`, for a whole process.
    here = Path(__file__)
    child = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            here.with_name("interpreted_barrier.py"),
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=here.parents[3],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert child.returncode == 0, child.stdout[-6000:] + child.stderr[-2000:]
    assert " passed" in child.stdout
    assert "skipped" not in child.stdout


def test_what_is_compiled_for_a_device() -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from plait.kernels.barrier import meet_kernel

    names = ("counter", "first", "stride", "status", "limit_ns")
    signature = dict.fromkeys(names, "i64") | {"RANK": "constexpr", "RANKS": "constexpr"}
    source = ASTSource(meet_kernel, signature, constexprs={(5,): 1, (6,): 4})
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    ptx = str(made.asm["ptx"])
    # Told to all before anything is waited for; looked at once, and again in the loop; and a way to stop.
    parts = ("st.release.sys", "ld.acquire.sys", "bra", "globaltimer", "ld.acquire.sys", "trap;")
    at = -1
    for part in parts:
        at = ptx.index(part, at + 1)
    assert ".reqntid 32" in ptx, "more than one warp: a word would be stored by several threads"
