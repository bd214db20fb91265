"""What a process knows of itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from plait.contract.layouts import Layout
from plait.engine import state


def test_a_process_starts_off_and_empty() -> None:
    assert state.settings.layout is Layout.OFF
    for name in ("strategy", "pool", "allocator", "status", "integrity", "kv_dtype"):
        assert getattr(state, name) is None
    assert state.hooks == []


@pytest.mark.usefixtures("engine")
@pytest.mark.timeout(600)
def test_its_place_is_that_of_the_attention_cp_group_and_never_of_tensor_parallelism(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sglang.srt import runtime_context

    parallel = SimpleNamespace(attn_cp_rank=1, attn_cp_size=4, tp_rank=7, tp_size=8)
    monkeypatch.setattr(runtime_context, "get_parallel", lambda: parallel)
    assert state.group() == (1, 4)
    assert (state.group().rank, state.group().ranks) == (1, 4)
