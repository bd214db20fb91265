"""The fault table, one test a row: rows run on several routers at once, before the first test reports."""

from __future__ import annotations

import asyncio

import pytest
from tests.router.faults.rows import Row, rows
from tests.router.faults.runner import Outcomes, run_rows

BENCHES = 5
ROWS = list(rows())


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """What each selected row came to."""
    chosen = [
        item.callspec.params["row"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    return asyncio.run(run_rows(chosen, benches=min(BENCHES, len(chosen))))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(outcomes: Outcomes, row: Row) -> None:
    assert row in outcomes.rows, "the bench that had it ended before"
    if outcomes.rows[row]:
        pytest.fail(outcomes.rows[row], pytrace=False)


def test_nothing_is_left(outcomes: Outcomes) -> None:
    """After all rows: no leg, no connection, no room used twice, no traceback in the routers' logs."""
    if outcomes.after:
        pytest.fail("\n".join(outcomes.after), pytrace=False)
