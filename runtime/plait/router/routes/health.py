"""`/health` (the process lives) and `/ready` (a request would find a pair)."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel

from plait.router.board import Board
from plait.router.pairing import Side


class Health(BaseModel):
    """The process answers."""

    status: str = "ok"


class WorkerReadiness(BaseModel):
    """One engine: in rotation, or why not."""

    url: str
    side: Side
    ready: bool
    reason: str


class Readiness(BaseModel):
    """`ready` with at least one pair of equal contracts; `reason` says why not."""

    ready: bool
    reason: str
    pairs: int
    workers: list[WorkerReadiness]


def routes(board: Board) -> APIRouter:
    """The two probes."""
    router = APIRouter(tags=["probes"])

    @router.get("/health")
    async def health() -> Health:
        return Health()

    @router.get("/ready", responses={503: {"model": Readiness}})
    async def ready(response: Response) -> Readiness:
        answer = readiness(board)
        response.status_code = 200 if answer.ready else 503
        return answer

    return router


def readiness(board: Board) -> Readiness:
    """Whether the router can serve now."""
    reasons = board.workers.reasons()
    pairs = len(board.workers.pairs())
    if board.draining:
        reason = "the router is ending"
    elif not board.source.synced:
        reason = f"the list of workers is not known yet: {board.source.problem or 'waiting for the source'}"
    elif missing := board.processes_without_pair:
        reason = f"{missing} of the router's processes have no pair yet"
    elif not pairs:
        reason = "no prefill and decode engines with equal contracts are ready"
    else:
        reason = ""
    return Readiness(
        ready=not reason,
        reason=reason,
        pairs=pairs,
        workers=[
            WorkerReadiness(url=w.url, side=w.side, ready=not reasons[w.url], reason=reasons[w.url])
            for w in board.workers.workers
        ],
    )
