"""What a stub engine is: role, contracts and status, from its real flags and environment."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from plait.contract.capacity import pages_of_pool, pool_bytes, pool_unit, tokens_for_bytes
from plait.contract.kv import GroupContract
from plait.contract.layouts import Layout
from plait.contract.settings import Settings
from plait.contract.status import EngineStatus, PageCounts, RankStatus
from plait.contract.validate.argv import parse_engine_argv
from plait.pod.asked import Asked
from plait.pod.checks.contract import own
from plait.pod.deadline import Deadline
from sglang.switches import Switches

_TOKENS = 65536


class Identity(NamedTuple):
    """`told`: the status but for what changes. `args`: ServerArgs fields as the flags set them."""

    told: EngineStatus
    args: Mapping[str, object]

    @classmethod
    def of(cls, flags: Sequence[str], switches: Switches) -> Identity:
        """Of the engine that was started with these flags. Raises ContractError for what cannot be read."""
        args = parse_engine_argv(flags)
        settings = Settings.from_env()
        asked = Asked(
            contract=Path("/"), gpus=0, flags=tuple(flags), environ=os.environ, deadline=Deadline(60)
        )
        role, wire, group = own(asked, unknown_dtype="fp8_e4m3")
        unit = pool_unit(group.ranks)
        most = args.get("max_total_tokens")
        tokens = switches.tokens or (most if isinstance(most, int) else _TOKENS) // unit * unit
        told = {
            "role": role,
            "layout": settings.layout.value,
            "split": settings.split.value if settings.layout.splits else "",
            "cp": group.ranks,
            "model": str(args.get("served_model_name") or args["model_path"]),
            "wire_hash": switches.wire_hash or wire.hash,
            "group_hash": switches.group_hash or group.hash,
            "started_at": time.time(),
            "capacity": {"tokens": tokens, "tokens_replicated": _replicated(tokens, group)},
        }
        return cls(EngineStatus.model_validate(told), args)

    def status(self, *, running: int) -> EngineStatus:
        """What `GET /plait/status` answers while `running` requests are under way."""
        pages = self.told.capacity.tokens // 64 // self.told.cp
        ranks = [
            RankStatus(
                rank=rank,
                pid=os.getpid(),
                updated_at=time.time(),
                age_s=0.01,
                running=running,
                pages=PageCounts(owned=pages, free=pages),
            )
            for rank in range(self.told.cp)
        ]
        return self.told.model_copy(update={"ranks": ranks})


def _replicated(tokens: int, group: GroupContract) -> int:
    """Tokens that the replicated layout would hold in this pool's bytes, as a real engine counts them."""
    if group.layout is not Layout.SHARED:
        return tokens
    row = group.wire.mla_row_bytes + group.wire.index_row_bytes
    layers, ranks = group.wire.layers, group.ranks
    pages = pages_of_pool(tokens, ranks=ranks)
    pool = pool_bytes(pages, ranks=ranks, layers=layers, row=row, layout=Layout.SHARED)
    return tokens_for_bytes(pool, ranks=ranks, layers=layers, row=row, layout=Layout.REPLICATED)
