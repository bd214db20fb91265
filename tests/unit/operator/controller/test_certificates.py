"""The patch that gives every webhook its CA bundle."""

from __future__ import annotations

from typing import Any

import pytest

from plait_operator.controller.certificates import steps_of


def webhooks(*bundles: str | None) -> dict[str, Any]:
    return {
        "webhooks": [
            {"name": f"w{n}", "clientConfig": {} if b is None else {"caBundle": b}}
            for n, b in enumerate(bundles)
        ]
    }


@pytest.mark.parametrize(
    ("held", "touched"),
    [((), []), (("new",), []), ((None,), [0]), (("old", "new"), [0]), (("new", None, "old"), [1, 2])],
)
def test_only_what_differs_is_patched_and_only_where_it_still_is(held: Any, touched: list[int]) -> None:
    steps = steps_of(webhooks(*held), "new")
    assert [(s["op"], s["path"], s["value"]) for s in steps] == [
        step
        for n in touched
        for step in (
            ("test", f"/webhooks/{n}/name", f"w{n}"),
            ("add", f"/webhooks/{n}/clientConfig/caBundle", "new"),
        )
    ]


def test_a_configuration_without_webhooks_needs_nothing() -> None:
    assert steps_of({}, "new") == []
