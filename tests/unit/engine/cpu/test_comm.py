"""Groups over gloo: no NCCL communicator, collectives without the custom op."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from plait.engine.cpu import comm


def test_a_group_is_built_without_pynccl_however_it_was_asked_for() -> None:
    seen: list[tuple[object, ...]] = []

    def original(self: SimpleNamespace, ranks: list[int], use_pynccl: bool, name: str = "tp") -> None:
        self.pynccl_comm = "made"
        seen.append((ranks, use_pynccl, name))

    for given, named in ((([0, 1], True), {}), (([0, 1],), {"use_pynccl": True, "name": "cp"})):
        group = SimpleNamespace()
        comm.group_without_nccl(original, group, *given, **named)
        assert group.pynccl_comm is None
    assert seen == [([0, 1], False, "tp"), ([0, 1], False, "cp")]


def test_collectives_go_to_the_plain_ones() -> None:
    calls: list[tuple[str, object, object]] = []
    group = SimpleNamespace(
        _all_gather_into_tensor=lambda out, given: calls.append(("gather", out, given)),
        _reduce_scatter_tensor=lambda out, given: calls.append(("scatter", out, given)),
    )
    out, given = torch.zeros(2), torch.ones(1)
    comm.all_gather_into_tensor(group, out, given)
    comm.reduce_scatter_tensor(group, out, given)
    assert [(name, a is out, b is given) for name, a, b in calls] == [
        ("gather", True, True),
        ("scatter", True, True),
    ]
