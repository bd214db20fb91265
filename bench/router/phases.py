"""What one started router is put through, and what is read off: CPU, time to the first token, memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.router.mocks import Mocks
from bench.router.routers import KEY, Running, metrics_size, refuses_strangers
from bench.router.tools import LoadError, load

BODIES = {"1 KB": 1024, "200 KB": 200 * 1024}
STREAMS = 64
PACED_STREAMS = 200
PACE = 50  # tokens/s
_SATURATED_TOKENS = 1000
_RAMP = 1.5  # seconds until all paced streams have begun


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How long each part takes. `window`, `paced`: seconds that are counted; `streams`: of the memory run;
    `conversations`, `forms`: of the prefix trace.
    """

    rounds: int
    window: float
    paced: float
    first_tokens: int
    streams: int
    conversations: int
    forms: tuple[str, ...]


FULL = Lengths(
    rounds=5,
    window=3.0,
    paced=4.0,
    first_tokens=80,
    streams=10_000,
    conversations=600,
    forms=("chat", "generate"),
)
QUICK = Lengths(
    rounds=1, window=1.5, paced=1.5, first_tokens=20, streams=2_000, conversations=120, forms=("chat",)
)


class Cost(NamedTuple):
    """CPU of the router in microseconds for each request or chunk, and how busy its core was (0 to 1)."""

    cpu_us: float
    per_second: float
    busy: float


class Errors(list[str]):
    """What went wrong in any phase, in words. Empty after a sound measurement."""


def speed(
    router: Running, mocks: Mocks, lengths: Lengths, errors: Errors, *, requests_only: bool = False
) -> dict[str, Any]:
    """One pass of all phases; raw figures by name."""
    figures: dict[str, Any] = {
        f"requests {name}": _requests(router, size, lengths, errors) for name, size in BODIES.items()
    }
    if not requests_only:
        figures["chunks"] = _chunks(router, lengths, errors)
        figures["chunks paced"] = _paced_chunks(router, lengths, errors)
        figures["first token"] = load(
            "ttft",
            router.address,
            key=KEY,
            direct=mocks.decode_address,
            count=lengths.first_tokens,
            tokens=8,
        )
    figures["memory_mb"] = router.tree.memory()._asdict()
    figures["refuses_strangers"] = refuses_strangers(router)
    figures["metrics_bytes"] = metrics_size(router)
    if not figures["metrics_bytes"]:
        errors.append(f"{router.name}: it has no metrics")
    _check_rooms(router, mocks, errors)
    return figures


def costs(router: Running, lengths: Lengths, errors: Errors) -> dict[str, float]:
    """CPU alone, in microseconds for each request or chunk, once, by phase."""
    found = {f"requests {name}": _requests(router, size, lengths, errors) for name, size in BODIES.items()}
    found["chunks"] = _chunks(router, lengths, errors)
    found["chunks paced"] = _paced_chunks(router, lengths, errors)
    return {phase: figures["cpu_us"] for phase, figures in found.items()}


def memory(router: Running, lengths: Lengths, errors: Errors) -> dict[str, float]:
    """MiB of a fresh router's largest process, before and after many short streams."""
    _streams_in_all(router, max(100, lengths.streams // 10), errors)
    before = router.tree.memory()
    _streams_in_all(router, lengths.streams, errors)
    after = router.tree.memory()
    return {
        "streams": lengths.streams,
        "before": before.largest,
        "after": after.largest,
        "growth": after.largest - before.largest,
        "peak": after.largest_peak,
        "together": after.together,
    }


def _requests(router: Running, size: int, lengths: Lengths, errors: Errors) -> dict[str, Any]:
    figures = load(
        "requests",
        router.address,
        key=KEY,
        pids=router.tree.pids(),
        body=size,
        conns=32,
        tokens=16,
        warm="500ms",
        window=f"{lengths.window}s",
    )
    _note(router, f"requests of {size} bytes", figures, errors)
    return _with_cost(router, figures, "requests")


def _chunks(router: Running, lengths: Lengths, errors: Errors) -> dict[str, Any]:
    figures = load(
        "streams",
        router.address,
        key=KEY,
        pids=router.tree.pids(),
        conns=STREAMS,
        tokens=_SATURATED_TOKENS,
        warm="500ms",
        window=f"{lengths.window}s",
    )
    _note(router, "streams", figures, errors)
    return _with_cost(router, figures, "chunks")


def _paced_chunks(router: Running, lengths: Lengths, errors: Errors) -> dict[str, Any]:
    # Long enough that every stream runs through the whole window, whenever it began.
    figures = load(
        "streams",
        router.address,
        key=KEY,
        pids=router.tree.pids(),
        conns=PACED_STREAMS,
        pace=PACE,
        tokens=int(PACE * (_RAMP + lengths.paced + 0.5)),
        warm=f"{_RAMP}s",
        window=f"{lengths.paced}s",
    )
    _note(router, "paced streams", figures, errors)
    return _with_cost(router, figures, "chunks")


def _streams_in_all(router: Running, count: int, errors: Errors) -> None:
    figures = load(
        "streams", router.address, key=KEY, conns=STREAMS, tokens=10, count=count, warm="0s", window="300s"
    )
    _note(router, f"{count} streams", figures, errors)


def _with_cost(router: Running, figures: dict[str, Any], unit: str) -> dict[str, Any]:
    count = figures[unit]
    if not count:
        raise LoadError(f"no {unit} within {figures['seconds']:.1f} s: {figures['error_examples']}")
    cost = Cost(
        figures["cpu_s"] / count * 1e6, count / figures["seconds"], figures["cpu_s"] / figures["seconds"]
    )
    # The peak only ever rises: it says in which phase it did.
    return figures | cost._asdict() | {"peak_mb": router.tree.memory().largest_peak}


def _note(router: Running, what: str, figures: dict[str, Any], errors: Errors) -> None:
    if figures["errors"]:
        errors.append(f"{router.name}, {what}: {figures['errors']} errors: {figures['error_examples']}")


def _check_rooms(router: Running, mocks: Mocks, errors: Errors) -> None:
    rooms = mocks.stats()["rooms"]
    if rooms["twice"] or rooms["lonely"]:
        errors.append(f"{router.name}: bootstrap rooms used twice, or by one side only: {rooms}")
    mocks.reset()
