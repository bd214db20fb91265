"""The rehearsal tells which hooks took, and ends as an engine would when one did not."""

from __future__ import annotations

import json

import pytest
from tests.unit.engine.conftest import Outcome

from plait.engine.rehearsal import MARK
from plait.engine.targets import TARGETS, When

pytestmark = pytest.mark.timeout(600)


def test_it_tells_every_hook_with_its_reason(scenarios: dict[str, Outcome]) -> None:
    found = scenarios["rehearsal"]
    assert found.status == 0, found.err
    [line] = [line for line in found.out.splitlines() if line.startswith(MARK)]
    told = json.loads(line.removeprefix(MARK))
    wanted = [t for t in TARGETS if t.when is not When.DEBUG]
    assert sorted(told) == sorted([t.path, t.kind.value, t.why] for t in wanted)


def test_it_ends_as_an_engine_would(scenarios: dict[str, Outcome]) -> None:
    assert "the engine did not apply these hooks" in scenarios["unapplied_rehearsal"].refusal
    assert MARK not in scenarios["unapplied_rehearsal"].out
