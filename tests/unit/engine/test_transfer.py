"""What each rank sends, what is refused before a byte is sent, and what the handshake carries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.engine.conftest import Place

from plait.contract.layouts import Layout
from plait.contract.setting_kinds import Fault
from plait.engine import faults, fences, identity, transfer
from plait.transfer import AckFence, PairTotals, TransferStats

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def own_stats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "stats", TransferStats())


class Manager(SimpleNamespace):
    """The engine's transfer manager of one rank, as far as hooks see it."""

    def __init__(self, *, rank: int = 0, ranks: int = 2, **other: object) -> None:
        super().__init__(
            attn_cp_rank=rank,
            attn_cp_size=ranks,
            attn_tp_rank=0,
            pp_rank=0,
            pp_size=1,
            transfer_infos={},
            request_status={7: fences.kv_poll().WaitingForInput},
            failures={},
            told=[],
            **other,
        )

    def record_failure(self, room: int, reason: str) -> None:
        self.failures[room] = reason

    def update_status(self, room: int, status: object) -> None:
        self.request_status[room] = status

    def sync_status_to_decode_endpoint(self, *told: object) -> None:
        self.told.append(told)


def unused(*_: object, **__: object) -> Any:
    pytest.fail("the stock function was called")


class TestHandshake:
    def test_the_wire_hash_travels_in_the_compared_dtype(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(identity, "wire_hash", lambda: "abc123")
        args = SimpleNamespace(kv_cache_dtype_str="torch.float32")
        transfer.carry_contract(None, args, "prefill", server_args=None)
        assert args.kv_cache_dtype_str == "torch.float32+plait.abc123"

    def test_another_contract_fails_the_rooms_that_named_it(self) -> None:
        manager = Manager(addr_to_rooms_tracker={"p:1": {7, 8}, "p:2": {9}})

        def original(manager: object, address: str) -> bool:
            raise RuntimeError("kv cache dtype mismatch: a+plait.1 != a+plait.2")

        assert transfer.refuse_other_contract(original, manager, "p:1") is False
        failed = fences.kv_poll().Failed
        assert manager.request_status[7] == manager.request_status[8] == failed
        assert set(manager.failures) == {7, 8}
        for reason in manager.failures.values():
            assert "p:1 has another KV contract" in reason
            assert "plait.1 != a+plait.2" in reason

    def test_a_prefill_that_answers_is_alive_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fence = AckFence(timeout_s=9)
        monkeypatch.setattr(fences, "_ack_fence", fence)
        fence.lose("p:1")
        assert transfer.refuse_other_contract(lambda *_: False, Manager(), "p:1") is False
        assert fence.lost("p:1")
        assert transfer.refuse_other_contract(lambda *_: True, Manager(), "p:1") is True
        assert not fence.lost("p:1")


class TestSend:
    def sender(self, rank: int, ranks: int = 2, pages: int = 5) -> Any:
        return SimpleNamespace(kv_mgr=Manager(rank=rank, ranks=ranks), curr_idx=0, num_kv_indices=pages)

    @pytest.mark.parametrize("layout", [Layout.SHARED, Layout.REPLICATED])
    def test_chunks_become_own_pages_with_positions_in_the_request(
        self, place: Place, layout: Layout
    ) -> None:
        place.settings(layout=layout)
        logical = [4, 7, 6, 9, 10]
        found: dict[int, int] = {}
        for rank in range(2):
            sender = self.sender(rank)
            for chunk, last in ((logical[:3], False), (logical[3:], True)):
                pages, positions, is_last, skip = transfer.own_send_indices(unused, sender, np.array(chunk))
                assert (is_last, skip) == (last, False)
                for page, position in zip(pages.tolist(), positions.tolist(), strict=True):
                    found[position] = page * 2 + rank if layout is Layout.SHARED else page
        assert [found[position] for position in range(5)] == logical

    def test_an_engine_without_context_parallelism_sends_as_stock(self, place: Place) -> None:
        place.settings(layout=Layout.PLAIN)
        stock = ("pages", slice(0, 1), True, False)
        sender = self.sender(0, ranks=1)
        assert transfer.own_send_indices(lambda *_: stock, sender, [1], None) is stock

    def test_the_negative_control_drops_a_page_of_rank_0(self, place: Place) -> None:
        place.settings(layout=Layout.SHARED, test_fault=Fault("drop-page"))
        pages, positions, _, _ = transfer.own_send_indices(unused, self.sender(0), np.array([4, 6, 7]))
        assert (pages.tolist(), positions.tolist()) == ([3], [1])
        pages, positions, _, _ = transfer.own_send_indices(unused, self.sender(1), np.array([4, 6, 7]))
        assert (pages.tolist(), positions.tolist()) == ([3], [2])

    def test_no_rank_skips_its_index_pages(self) -> None:
        assert transfer.send_index_from_owners(None, None) == (False, False)

    def test_index_pages_go_to_decodes_page_at_the_same_position(self, place: Place) -> None:
        place.settings(layout=Layout.SHARED)
        request = SimpleNamespace(dst_state_indices=[[20, 21, 22], ["other"]])
        seen: list[Any] = []

        def original(manager: object, req: Any, sources: list[Any], executor: str, info: str) -> int:
            assert (executor, info) == ("pool", "target")
            seen.append((req, sources))
            return 3

        code = transfer.send_own_index_pages(
            original, Manager(rank=1), request, [np.array([5, 4, 7]), None], "pool", "target"
        )
        assert code == 3
        [(sent, sources)] = seen
        assert sources[0].tolist() == [2, 3]
        assert sent.dst_state_indices[0].tolist() == [20, 22]
        assert (sources[1], sent.dst_state_indices[1]) == (None, ["other"])
        assert request.dst_state_indices == [[20, 21, 22], ["other"]], "the request itself is left alone"

    def test_a_rank_without_pages_sends_an_empty_list(self, place: Place) -> None:
        place.settings(layout=Layout.SHARED)
        request = SimpleNamespace(dst_state_indices=[[20]])
        seen: list[Any] = []
        transfer.send_own_index_pages(
            lambda _, req, sources, *rest: seen.append((req.dst_state_indices, sources)) or 0,
            Manager(rank=1),
            request,
            [np.array([4])],
            None,
        )
        [(destinations, sources)] = seen
        assert [one.tolist() for one in (*destinations, *sources)] == [[], []]


class TestDestination:
    def info(self, pages: int = 3, state: int = 3, *, dummy: bool = False) -> Any:
        return SimpleNamespace(
            is_dummy=dummy,
            mooncake_session_id="decode:1",
            dst_kv_indices=list(range(pages)),
            dst_state_indices=[list(range(state))],
            endpoint="10.0.0.1",
            dst_port=99,
        )

    def add(
        self, manager: Manager, positions: Any, *, last: bool = True, state: list[Any] | None = None
    ) -> list[Any]:
        passed: list[Any] = []

        def original(manager: object, room: int, *given: object, **named: object) -> None:
            passed.append((room, given, named))

        transfer.check_destination(
            original, manager, 7, np.zeros(len(positions)), positions, last, 0, state, num_kv_tokens=5
        )
        return passed

    def test_what_fits_is_sent_and_counted(self) -> None:
        manager = Manager()
        manager.transfer_infos[7] = {"decode:1": self.info()}
        passed = self.add(manager, np.array([0, 2]), state=[np.array([1, 2, 3])])
        assert len(passed) == 1
        assert passed[0][2] == {"num_kv_tokens": 5}
        assert transfer.stats.totals() == [PairTotals("decode:1", 2, 0, 0.0, 0)]
        assert manager.failures == {}

    def test_a_position_beyond_decodes_list_fails_the_room_on_both_sides(self) -> None:
        manager = Manager(rank=1)
        manager.transfer_infos[7] = {"decode:1": self.info()}
        assert self.add(manager, np.array([1, 3]), last=False) == []
        failed = fences.kv_poll().Failed
        assert manager.request_status[7] == failed
        assert "positions 1..3 do not fit the 3 pages" in manager.failures[7]
        assert manager.told == [("10.0.0.1", 99, 7, failed, 1)]
        assert transfer.stats.totals() == [PairTotals("decode:1", 0, 0, 0.0, 1)]

    @pytest.mark.parametrize("state", [2, 4])
    def test_index_lists_of_unequal_length_fail_the_room(self, state: int) -> None:
        manager = Manager()
        manager.transfer_infos[7] = {"decode:1": self.info(state=state)}
        assert self.add(manager, np.array([0]), state=[np.array([1, 2, 3])]) == []
        assert "prefill has [3] index pages to send" in manager.failures[7]

    def test_index_lists_are_compared_when_they_travel(self) -> None:
        manager = Manager()
        manager.transfer_infos[7] = {"decode:1": self.info(state=2)}
        assert len(self.add(manager, np.array([0]), last=False, state=[np.array([1, 2, 3])])) == 1
        assert len(self.add(manager, np.array([0]), state=None)) == 1

    def test_dummies_and_stock_slices_are_left_to_the_engine(self) -> None:
        manager = Manager()
        manager.transfer_infos[7] = {"decode:1": self.info(pages=0, dummy=True)}
        assert len(self.add(manager, np.array([5]))) == 1
        manager.transfer_infos[7] = {"decode:1": self.info(pages=0)}
        passed: list[int] = []
        transfer.check_destination(
            lambda _, room, *given, **named: passed.append(room), manager, 7, [1], slice(0, 1), True, 0, None
        )
        assert passed == [7]
        assert transfer.stats.totals() == []

    @pytest.mark.parametrize("status", ["failed", "gone"])
    def test_a_room_that_is_over_is_neither_checked_nor_counted(self, status: str) -> None:
        manager = Manager()
        manager.transfer_infos[7] = {"decode:1": self.info()}
        manager.request_status = {7: fences.kv_poll().Failed} if status == "failed" else {}
        assert len(self.add(manager, np.array([99]))) == 1, "the engine drops it itself"
        assert transfer.stats.totals() == []
        assert manager.failures == {}


class TestBatches:
    def send(self, codes: list[int], blocks: int, **manager: Any) -> tuple[int, list[int]]:
        sizes: list[int] = []

        def original(manager: object, session: str, some: Any) -> int:
            assert session == "decode:1"
            sizes.append(len(some))
            return codes.pop(0)

        given = [(0, 0, 10)] * blocks
        return transfer.send_in_bounded_batches(original, Manager(**manager), "decode:1", given), sizes

    def test_many_blocks_go_in_bounded_batches(self) -> None:
        limit = transfer._BLOCKS_AT_ONCE
        assert self.send([0, 0, 0], 2 * limit + 1) == (0, [limit, limit, 1])
        [pair] = transfer.stats.totals()
        assert (pair.bytes, pair.failures) == (10 * (2 * limit + 1), 0)

    def test_nothing_follows_a_failed_batch(self) -> None:
        limit = transfer._BLOCKS_AT_ONCE
        assert self.send([0, -1], 3 * limit) == (-1, [limit, limit])
        [pair] = transfer.stats.totals()
        assert (pair.bytes, pair.failures) == (10 * limit, 1)

    def test_no_blocks_are_no_call(self) -> None:
        assert self.send([], 0) == (0, [])

    def test_the_negative_controls_are_rank_1s(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(faults, "SLOW_SEND_S", 0.0)
        place.settings(test_fault=Fault("fail-send"))
        assert self.send([0], 1, rank=0) == (0, [1])
        assert self.send([0], 1, rank=1) == (-1, [])
        place.settings(test_fault=Fault("slow-send"))
        assert self.send([0], 1, rank=1) == (0, [1])
