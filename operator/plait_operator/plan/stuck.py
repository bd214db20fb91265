"""Why a rollout does not move although it should, in words with the fix. Stable while nothing changes."""

from __future__ import annotations

from typing import Final

from plait_operator.plan.board import Board
from plait_operator.plan.roles import ROLES, Role

UNSCHEDULABLE: Final = "Unschedulable"
"""How a trouble begins that only room on a node ends."""


def stuck(board: Board) -> str:
    """The reason, of a board on which no move was possible; empty when it is done, or only waits."""
    if not board.unfinished:
        return ""
    return _broken(board) or (_cornered(board) if board.settled else "") or _lost(board)


def _broken(board: Board) -> str:
    """The new revision's pods say why they don't get ready, and the old ones can't go because of it."""
    if all(len(board.roles[role].revisions) == 1 for role in ROLES):
        return ""  # Nothing is replaced: the role's own condition tells of its pods.
    for role in ROLES:
        state = board.roles[role]
        new = next(one for one in state.revisions if one.revision == state.target)
        if new.trouble and new.ready < state.wanted:
            return (
                f"pods of the new {role} revision {new.revision} do not get ready: {new.trouble}. "
                f"What serves stays as it is. Fix: {_way_out(board, new.trouble)}"
            )
    return ""


def _way_out(board: Board, trouble: str) -> str:
    if trouble.startswith(UNSCHEDULABLE):
        if board.budget.max_unavailable == 0:
            return "free a node, or set spec.rollout.maxUnavailable to 1, so that an old pod makes room"
        return "free a node: with one old pod less, fewer would serve than spec.rollout.maxUnavailable allows"
    return "mend what they name, or put the former spec back"


def _cornered(board: Board) -> str:
    """The budget leaves no way: on the role that has no room, for itself or for its partner's sake."""
    if any(board.target(role) > board.ready_target(role) for role in ROLES):
        return ""  # Pods start.
    short: list[Role] = [role for role in ROLES if board.target(role) < board.roles[role].wanted]
    tight: list[Role] = [role for role in ROLES if board.with_room(role) is None]
    for role in short:
        blocked = role if role in tight or not tight else tight[0]
        why = "" if blocked == role else f", and without it a new {role} pod finds no partner"
        count = max(board.held(blocked), board.asked(blocked))
        return (
            f"there is no room for a new {blocked} pod{why}: {count} are there, "
            f"spec.{blocked}.replicas {board.roles[blocked].wanted} and spec.rollout.maxSurge "
            f"{board.budget.max_surge} allow no more, and with one less fewer would serve than "
            f"spec.rollout.maxUnavailable {board.budget.max_unavailable} allows. "
            f"Set spec.rollout.maxSurge to {board.budget.max_surge + 1}"
        )
    return ""


def _lost(board: Board) -> str:
    """Pods that no workload of ours has: only a person can tell what they are."""
    for role in ROLES:
        state = board.roles[role]
        for one in state.revisions:
            if not one.exists and one.revision != state.target and one.pods:
                return (
                    f"{role} pods of revision {one.revision} have lost their workload: "
                    f"delete the pods, or the ReplicaSet that holds them"
                )
    return ""
