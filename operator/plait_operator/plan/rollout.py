"""Which workload of which revision has how many replicas next. Pure, and the same for every way there.

Every revision of a role is a workload of its own, so old and new run side by side. The router pairs only
equal wire hashes: a pod SERVES when it is ready and the other role has a ready pod of its wire. From what is
there (never from what was once intended) `step` moves towards "the target revision has the wanted replicas,
all others have none", and keeps, on both roles at once:

* **Floor.** No action lets the number of serving pods fall below `wanted - maxUnavailable`. Where failures
  already brought it lower, only pods that serve nothing are taken away.
* **Ceiling.** No action lets the pods of a role exceed `wanted + maxSurge`. A pod that is being deleted
  still counts: its GPUs are held until it ended.
* **Lockstep.** While the wire changes, neither role gets more than one step ahead of the other's share.

It is conservative about what it can't see: a replica asked for may exist, and may not be ready; a pod beyond
the replicas is as good as gone. Only target revisions are raised and only others lowered, so a plan made
twice says the same, and a new target mid-way (also the one before) is just another target. The one exception
is told at `_consolidate`.
"""

from __future__ import annotations

from plait_operator.plan.board import Board
from plait_operator.plan.roles import OTHER, ROLES, Budget, RevisionState, Role, RoleState, Step
from plait_operator.plan.stuck import stuck


def step(prefill: RoleState, decode: RoleState, budget: Budget) -> Step:
    """The next step of both roles together. The same state always gives the same step."""
    board = Board({"prefill": prefill, "decode": decode}, budget)
    _advance(board)
    if not board.moved and board.unfinished and board.settled and not board.starting:
        # The order that we prefer leads nowhere from here: budgets still hold, the preference does not.
        board.strict = False
        _advance(board)
        if not board.moved:
            _consolidate(board)
    return Step(
        prefill=board.replicas_of("prefill"),
        decode=board.replicas_of("decode"),
        finished={role: board.finished(role) for role in ROLES},
        rolling=board.replacing,
        stuck="" if board.moved else stuck(board),
    )


def _advance(board: Board) -> None:
    """All moves that are safe now: first what can go, then what there is room for."""
    before = -1
    while before != (before := sum(board.now.values())):
        for role in ROLES:
            for revision in board.leaving(role):
                _lower(board, role, revision)
    _open(board)
    for role in ROLES:
        _raise(board, role)


def _lower(board: Board, role: Role, revision: str) -> None:
    """Take pods of one revision away for as long as that is safe.

    What is safe to take is safe to take a part of, so the step is searched for and not counted out: replicas
    are whatever somebody wrote, and two thousand million of them must not keep the operator busy for days.
    """
    state = board.roles[role]
    one = next(one for one in state.revisions if one.revision == revision)
    while True:
        count = board.now[role, revision]
        last = state.wanted if revision == state.target else 0
        # The lowest count that one step may lead to lies in last..count; `count` itself is no step.
        low, high = last, count
        while low < high:
            middle = (low + high) // 2
            if _may_lower(board, role, one, middle):
                high = middle
            else:
                low = middle + 1
        if high >= count:
            return
        board.put(role, revision, high)


def _may_lower(board: Board, role: Role, one: RevisionState, replicas: int) -> bool:
    """Whether this revision may go down to `replicas` at once: one pod after the other it might, too."""
    state = board.roles[role]
    after = board.trial(role, one.revision, replicas)
    if board.strict and not _in_step(board, after, role, one):
        return False
    if board.keeps(after, role, full=True):
        return True
    # Less than all that is wanted may serve only where that makes room which is needed: with the last pod but
    # one gone there still is none, or the target needs no more of it.
    no_room = after.asked(role) + 1 >= board.limit(role)
    cornered = not board.opening and (no_room or board.target(role) >= state.wanted)
    return cornered and board.keeps(after, role, full=False)


def _in_step(board: Board, after: Board, role: Role, one: RevisionState) -> bool:
    """Whether the lowering keeps this role's share of an old wire within one step of the other's."""
    state, other = board.roles[role], board.roles[OTHER[role]]
    if one.wire == state.wire or not state.wanted or not other.wanted:
        return True
    if after.serving(role) == board.serving(role):
        return True  # It serves nothing.
    theirs = board.share(OTHER[role], one.wire)
    return theirs == 0 or after.share(role, one.wire) * other.wanted >= (theirs - 1) * state.wanted


def _open(board: Board) -> None:
    """For a new wire both roles need a first pod at once: make room for it on both, or on neither."""
    if not board.opening:
        return
    after: Board | None = board
    for role in ROLES:
        if after is not None and after.share(role, after.roles[role].wire) == 0:
            after = after.with_room(role)
    if after is not None and after.now != board.now:
        board.now = after.now
        board.moved = True


def _raise(board: Board, role: Role) -> None:
    """Raise the target as far as there is room."""
    state, other = board.roles[role], OTHER[role]
    room = board.limit(role) - max(board.held(role), board.asked(role))
    missing = state.wanted - board.target(role)
    if missing <= 0 or room <= 0:
        return
    if not all(one.settled for one in state.revisions):
        return  # What its controller was told before may still make pods.
    alone = board.share(other, state.wire) == 0 and board.roles[other].wanted > 0
    if alone and board.asked(other) >= board.limit(other):
        return  # Its pods would find no partner, and there is no room for one.
    board.put(role, state.target, board.target(role) + min(room, missing))


def _consolidate(board: Board) -> None:
    """Out of a corner that a change in the middle of a change left: an old wire is made whole again.

    Two old wires hold each other up, and neither has room for the new one. The one that is nearest to whole
    is raised, whereupon the other one can go. Target pods without a partner make room for that.
    """
    wires = {one.wire for role in ROLES for one, count in board.each(role) if count}
    wires -= {board.roles[role].wire for role in ROLES}
    whole = [wire for wire in wires if all(board.ready(role, wire) > 0 for role in ROLES)]
    if len(whole) < 2:
        return
    keeper = max(whole, key=board.rank)
    for role in ROLES:
        state = board.roles[role]
        room = board.limit(role) - max(board.held(role), board.asked(role))
        missing = board.floor(role, full=False) - board.share(role, keeper)
        if missing <= 0:
            continue
        if room > 0:
            best = max(
                (count, one.revision) for one, count in board.each(role) if one.wire == keeper and one.exists
            )
            board.put(role, best[1], best[0] + min(room, missing))
        elif board.target(role) and not board.ready(OTHER[role], state.wire):
            board.put(role, state.target, board.target(role) - 1)
