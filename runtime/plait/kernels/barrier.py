"""A barrier of the ranks of one host, on the device: one program of one warp, a lane a rank.

Each rank stores its epoch into every rank's pad (release, system scope), then reads its own pad (acquire,
system scope) until all ranks' epochs are there. Release makes everything that the stream did before visible
to whoever acquires: stores of earlier kernels and copies, for other ranks' kernels and copy engines. Plain
stores and loads, not atomics: not every link between two devices has atomics.

`plait.peer.barrier.HostBarrier` is the same in Python, on memory of the host.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as tl_cuda

LANES = tl.constexpr(32)
"""One warp: a lane a rank, and each word is stored by one thread."""
_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""The interpreter takes no inline assembly: atomics stand in for it there, a count of turns for the clock."""
_ADDRESSES = ("counter", "first", "stride", "status", "limit_ns")


@triton.jit  # type: ignore[untyped-decorator]
def _store_release(address: tl.tensor, value: tl.tensor, valid: tl.tensor) -> None:
    if _INTERPRETED:
        pointer = address.to(tl.pointer_type(tl.int32))
        tl.atomic_xchg(pointer, value, mask=valid, sem="release", scope="sys")
    else:
        tl.inline_asm_elementwise(
            """{
            .reg .pred p;
            setp.ne.s32 p, $3, 0;
            @p st.release.sys.global.b32 [$1], $2;
            mov.b32 $0, 0;
            }""",
            "=&r,l,r,r",
            [address, value, valid.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit  # type: ignore[untyped-decorator]
def _load_acquire(address: tl.tensor, valid: tl.tensor) -> tl.tensor:
    if _INTERPRETED:
        pointer = address.to(tl.pointer_type(tl.int32))
        seen = tl.atomic_add(
            pointer, tl.zeros_like(address).to(tl.int32), mask=valid, sem="acquire", scope="sys"
        )
    else:
        seen = tl.inline_asm_elementwise(
            """{
            .reg .pred p;
            setp.ne.s32 p, $2, 0;
            mov.b32 $0, 0;
            @p ld.acquire.sys.global.b32 $0, [$1];
            }""",
            "=&r,l,r",
            [address, valid.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    return seen


@triton.jit  # type: ignore[untyped-decorator]
def _report(status: tl.tensor, epoch: tl.tensor, missing: tl.tensor) -> None:
    """Tell the host: the epoch, and after it the ranks that are missing, one bit each. Then end the context,
    so that nothing that was launched after the barrier runs."""
    if _INTERPRETED:
        words = status.to(tl.pointer_type(tl.int64))
        tl.store(words, epoch.to(tl.int64))
        tl.store(words + 1, missing)
    else:
        tl.inline_asm_elementwise(
            """{
            st.relaxed.sys.global.b64 [$1], $2;
            st.release.sys.global.b64 [$1 + 8], $3;
            fence.sc.sys;
            trap;
            mov.b32 $0, 0;
            }""",
            "=&r,l,l,l",
            [status, epoch.to(tl.int64), missing],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit  # type: ignore[untyped-decorator]
def _nanoseconds(turns: tl.tensor) -> tl.tensor:
    if _INTERPRETED:
        now = turns
    else:
        now = tl_cuda.globaltimer()
    return now


@triton.jit(do_not_specialize=_ADDRESSES)  # type: ignore[untyped-decorator]
def meet_kernel(
    counter: tl.int64,
    first: tl.int64,
    stride: tl.int64,
    status: tl.int64,
    limit_ns: tl.int64,
    RANK: tl.constexpr,  # noqa: N803
    RANKS: tl.constexpr,  # noqa: N803
) -> None:
    """One meeting. All arguments but the last two are int64, addresses in bytes.

    counter: int32, this rank's last epoch; the kernel counts it up.
    first: int32 [RANKS], the words of rank 0's pad; rank r's are `r * stride` bytes further.
    status: int64 [2] of the host, mapped: epoch and missing ranks, if the limit is passed.
    limit_ns: how long to wait; under the interpreter, how many turns.
    """
    lanes = tl.arange(0, LANES)
    valid = lanes < RANKS
    ranks = tl.where(valid, lanes, 0).to(tl.int64)
    own_counter = counter.to(tl.pointer_type(tl.int32))
    # Wraps as int32 does.
    epoch = tl.load(own_counter) + 1
    _store_release(first + ranks * stride + RANK * 4, tl.zeros_like(lanes) + epoch, valid)
    arrived = first + RANK * stride + ranks * 4
    turns = tl.zeros((), tl.int64)
    began = _nanoseconds(turns)
    waited = turns
    behind = valid & (_load_acquire(arrived, valid) - epoch < 0)
    missing = tl.sum(behind.to(tl.int32), 0)
    while (missing > 0) & (waited <= limit_ns):
        turns += 1
        waited = _nanoseconds(turns) - began
        behind = valid & (_load_acquire(arrived, valid) - epoch < 0)
        missing = tl.sum(behind.to(tl.int32), 0)
    if missing > 0:
        _report(status, epoch, tl.sum(behind.to(tl.int64) << ranks, 0))
    tl.store(own_counter, epoch)


def bind_meet(
    *,
    counter: int,
    first: int,
    stride: int,
    status: int,
    limit_ns: int,
    rank: int,
    ranks: int,
    device: torch.device,
) -> Callable[[], None]:
    """The kernel, compiled for `device` and bound to its arguments (as of `meet_kernel`): a call launches one
    meeting on the current stream. Raises whatever the compiler raises, here and not at the first meeting.

    HAZARD: `device` must be the current device of the thread that calls.
    """
    arguments = (counter, first, stride, status, limit_ns, rank, ranks)
    with torch.cuda.device(device):
        compiled = meet_kernel.warmup(*arguments, grid=(1,), num_warps=1)
        # Past the binder of Triton, which takes more time than the launch: the arguments never change.
        launch = compiled[(1, 1, 1)]

    def meet() -> None:
        launch(*arguments)

    return meet
