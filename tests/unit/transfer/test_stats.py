"""Transfer counters: per pair, monotone, exact under threads."""

from __future__ import annotations

import threading

from plait.transfer import PairTotals, TransferStats


def test_a_batch_counts_bytes_only_if_it_arrived() -> None:
    stats = TransferStats()
    stats.pages("d0", 3)
    stats.sent("d0", bytes=100, seconds=0.5, failed=False)
    stats.sent("d0", bytes=70, seconds=0.25, failed=True)
    assert stats.totals() == [PairTotals("d0", pages=3, bytes=100, seconds=0.75, failures=1)]


def test_a_room_that_failed_before_a_byte_is_a_failure() -> None:
    stats = TransferStats()
    stats.failed("d1")
    assert stats.totals() == [PairTotals("d1", pages=0, bytes=0, seconds=0.0, failures=1)]


def test_pairs_are_apart_and_in_order() -> None:
    stats = TransferStats()
    for peer in ("d2", "d0", "d1"):
        stats.pages(peer, 1)
    assert [pair.peer for pair in stats.totals()] == ["d0", "d1", "d2"]


def test_totals_are_a_copy() -> None:
    stats = TransferStats()
    stats.pages("d0", 1)
    before = stats.totals()
    stats.pages("d0", 1)
    assert before[0].pages == 1
    assert stats.totals()[0].pages == 2


def test_nothing_is_lost_between_threads() -> None:
    stats = TransferStats()

    def work() -> None:
        for _ in range(500):
            stats.pages("d0", 1)
            stats.sent("d0", bytes=2, seconds=0.5, failed=False)
            stats.totals()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stats.totals() == [PairTotals("d0", pages=2000, bytes=4000, seconds=1000.0, failures=0)]
