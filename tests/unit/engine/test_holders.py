"""Who holds pages in a scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from plait.contract.layouts import PAGE_SIZE
from plait.engine import holders


def slots(*pages: int) -> torch.Tensor:
    return torch.cat([torch.arange(PAGE_SIZE) + page * PAGE_SIZE for page in pages])


def node(value: torch.Tensor | None, *children: Any) -> Any:
    return SimpleNamespace(value=value, children=dict(enumerate(children)))


def request(rid: str, row: int | None = 0, *, held: int | None = PAGE_SIZE) -> Any:
    kv = None if held is None else SimpleNamespace(kv_allocated_len=held)
    return SimpleNamespace(rid=rid, req_pool_idx=row, kv=kv)


def scheduler(
    *,
    running: list[Any],
    last: list[Any] | None = None,
    chunked: Any = None,
    sending: list[Any] | None = None,
) -> Any:
    table = torch.zeros(4, 4 * PAGE_SIZE, dtype=torch.int32)
    for row in range(4):
        table[row] = slots(*range(10 * row + 4, 10 * row + 8))
    return SimpleNamespace(
        chunked_req=chunked,
        running_batch=SimpleNamespace(reqs=running),
        last_batch=None if last is None else SimpleNamespace(reqs=last),
        disagg_prefill_inflight_queue=sending,
        req_to_token_pool=SimpleNamespace(req_to_token=table),
    )


def test_tree_pages_are_those_of_every_node() -> None:
    root = node(None, node(slots(4, 7), node(slots(5)), node(slots(9))), node(torch.empty(0)))
    found = holders.tree_pages(SimpleNamespace(root_node=root))
    assert sorted(pages.tolist() for pages in found) == [[4, 7], [5], [9]]


def test_an_engine_without_a_tree_has_none() -> None:
    assert holders.tree_pages(SimpleNamespace()) == []


def test_each_live_request_is_named_once_whatever_lists_it_stands_in() -> None:
    a, b, c, d = (request(name, row) for row, name in enumerate("abcd"))
    found = holders.live_requests(scheduler(running=[a, b], last=[b, c], chunked=c, sending=[d, a]))
    assert sorted(req.rid for req in found) == ["a", "b", "c", "d"]


def test_requests_that_hold_nothing_are_left_out() -> None:
    found = holders.live_requests(scheduler(running=[request("a", None), request("b", held=None)], last=[]))
    assert list(found) == []


def test_pages_of_a_request_are_as_many_as_are_allocated() -> None:
    running = [request("whole", 1, held=256), request("part", 2, held=65), request("none", 3, held=0)]
    found = {h.name: h.pages.tolist() for h in holders.request_pages(scheduler(running=running))}
    assert found == {"whole": [14, 15, 16, 17], "part": [24, 25], "none": []}
