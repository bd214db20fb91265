"""Whether pools are mapped: one answer for all ranks, told in words; ends where it was required."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.engine.conftest import Place

from plait.contract.layouts import Layout
from plait.contract.setting_kinds import GatherPath, PeerAccess
from plait.contract.status import PeerCounts
from plait.engine import state
from plait.peer import Fault, PeersCannotMapError, Segment

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]
CPU = torch.device("cpu")


class Opened:
    """What stands in for `open_peer_memory`: every call, and the refusal that it answers with."""

    def __init__(self, refusal: str) -> None:
        self.refusal = refusal
        self.calls: list[dict[str, Any]] = []
        self.closed = 0

    def __call__(self, segments: Any, **given: Any) -> Any:
        self.calls.append({"segments": segments, **given})
        if self.refusal:
            raise PeersCannotMapError(self.refusal)
        return SimpleNamespace(close=self._close)

    def _close(self) -> None:
        self.closed += 1


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, place: Place) -> Callable[..., Opened]:
    """The surroundings of one rank; `refusal`: why no rank can map."""
    from sglang.srt import runtime_context

    from plait.engine import peers

    monkeypatch.setattr(state, "peer_counts", PeerCounts())
    monkeypatch.setattr(state, "peers", None)
    monkeypatch.delenv("SGLANG_MOONCAKE_CUSTOM_MEM_POOL", raising=False)

    def make(*, refusal: str = "", rank: int = 0, saver: bool = False, **settings: object) -> Opened:
        place.at(rank, 2)
        place.settings(layout=Layout.SHARED, **settings)
        opened = Opened(refusal)
        monkeypatch.setattr(peers, "open_peer_memory", opened)
        arguments = SimpleNamespace(enable_memory_saver=saver)
        monkeypatch.setattr(runtime_context, "get_server_args", lambda: arguments)
        return opened

    return make


def can_map() -> bool:
    from plait.engine.peers import peers_can_map

    return peers_can_map(CPU)


def test_a_small_piece_is_tried_once(world: Callable[..., Opened]) -> None:
    opened = world(peer_timeout_s=7.0)
    assert can_map()
    assert can_map()
    assert (len(opened.calls), opened.closed) == (1, 1)
    [call] = opened.calls
    assert (call["rank"], call["ranks"], call["timeout_s"]) == (0, 2, 7.0)
    assert state.peer_counts == PeerCounts(state="mapped")


@pytest.mark.parametrize(
    "settings", [{"peer_access": PeerAccess.OFF}, {"gather_path": GatherPath.COLLECTIVE}]
)
def test_nothing_is_tried_where_it_is_not_wanted(
    world: Callable[..., Opened], settings: dict[str, object]
) -> None:
    opened = world(**settings)
    assert not can_map()
    assert opened.calls == []
    assert state.peer_counts == PeerCounts(state="off")


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_cannot_map_gather_by_collectives_and_one_says_so(
    world: Callable[..., Opened], capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    world(refusal="device 1 cannot reach device 0", rank=rank)
    assert not can_map()
    assert not can_map()
    assert state.peer_counts == PeerCounts(
        state="refused", reason="device 1 cannot reach device 0", fallbacks=1
    )
    assert capsys.readouterr().out.count("gathering by collectives") == (rank == 0)


def test_ranks_that_must_map_and_cannot_do_not_start(
    world: Callable[..., Opened], capsys: pytest.CaptureFixture[str]
) -> None:
    world(refusal="device 1 cannot reach device 0", peer_access=PeerAccess.REQUIRED)
    with pytest.raises(SystemExit):
        can_map()
    said = capsys.readouterr().err
    assert "PLAIT_PEER_ACCESS = required" in said
    assert "device 1 cannot reach device 0" in said


def test_pools_that_others_allocate_are_not_mapped(
    world: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = world(saver=True)
    assert not can_map()
    assert "--enable-memory-saver" in state.peer_counts.reason
    monkeypatch.setattr(state, "peer_counts", PeerCounts())
    world()
    monkeypatch.setenv("SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "NVLINK")
    assert not can_map()
    assert "SGLANG_MOONCAKE_CUSTOM_MEM_POOL" in state.peer_counts.reason
    assert opened.calls == []


def test_pools_that_cannot_be_mapped_after_all_end_the_start(
    world: Callable[..., Opened], capsys: pytest.CaptureFixture[str]
) -> None:
    """The memory was planned without buffers for collectives."""
    from plait.engine.peers import map_pools

    world(refusal="out of memory")
    with pytest.raises(SystemExit):
        map_pools([Segment("mla.0", 100), Segment("index.0", 28)], unit_bytes=(4,), device=CPU)
    said = capsys.readouterr().err
    assert "pools of 128 bytes: out of memory" in said


def test_a_lost_rank_ends_the_engine_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from plait.engine import peers

    ended: list[bool] = []
    monkeypatch.setattr(peers, "end_engine", lambda: ended.append(True))
    peers._lost("rank 1 (pid 7) has ended")
    assert ended == [True]
    assert "plait: rank 1 (pid 7) has ended; this engine ends itself" in capsys.readouterr().err


def test_a_barrier_that_failed_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.engine import peers

    well: Any = SimpleNamespace(fault=lambda: None)
    lost: Any = SimpleNamespace(fault=lambda: Fault(2, 5, (1,)))
    monkeypatch.setattr(state, "peer_counts", PeerCounts(state="mapped"))
    for mla, timeouts in ((well, 0), (lost, 1)):
        barriers = peers.Barriers(batch=well, index=well, mla=mla)
        monkeypatch.setattr(state, "peers", SimpleNamespace(barriers=barriers))
        assert peers.counts() == PeerCounts(state="mapped", timeouts=timeouts)


class Watch:
    """What stands in for the watch: whether it was closed, and what it finds then."""

    def __init__(self, found: str | None) -> None:
        self.found = found
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def find(self, *, within_s: float) -> str | None:
        assert self.closed, "two would tell"
        assert within_s > 0
        return self.found


def _fail(_: object) -> None:
    raise RuntimeError("Connection closed by peer")


@pytest.mark.parametrize("found", ["rank 1 (pid 7) has ended", None])
def test_a_loop_that_fails_tells_which_rank_was_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], found: str | None
) -> None:
    """On a busy machine the engine ends on the broken connection before the watch looks again."""
    from plait.engine.peers import watched_until_the_end

    watch = Watch(found)
    monkeypatch.setattr(state, "peers", SimpleNamespace(watch=watch))
    with pytest.raises(RuntimeError, match="closed by peer"):
        watched_until_the_end(_fail, object())
    assert watch.closed
    said = "" if found is None else f"plait: {found}; this engine ends itself\n"
    assert capfd.readouterr().err == said


def test_an_orderly_end_is_no_loss(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from plait.engine.peers import watched_until_the_end

    watch = Watch("rank 1 (pid 7) has ended")
    monkeypatch.setattr(state, "peers", SimpleNamespace(watch=watch))
    ran: list[object] = []
    watched_until_the_end(ran.append, "scheduler")
    assert ran == ["scheduler"]
    assert watch.closed
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("fails", [False, True])
def test_a_rank_without_mapped_peers_has_no_watch(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    from plait.engine.peers import watched_until_the_end

    monkeypatch.setattr(state, "peers", None)
    if fails:
        with pytest.raises(RuntimeError):
            watched_until_the_end(_fail, object())
    else:
        watched_until_the_end(lambda _: None, object())
