"""Engines as data: nothing of this machine in them."""

from __future__ import annotations

from typing import Any

import pytest

from plait.contract.launch import decode_data, environment, host_flags, prefill_data
from plait.contract.validate import parse_engine_argv

COMMON: dict[str, Any] = {
    "model": "/there/model",
    "served_name": "name",
    "host": "0.0.0.0",
    "port": 1,
    "max_total_tokens": None,
    "context_length": None,
    "state_dir": "/there/state",
    "transfer": "mooncake",
    "cpu": False,
}
GROUP: dict[str, Any] = {"bootstrap_port": 2, "cp": 8, "layout": "shared", "split": "s", "chunk": 64}


def test_paths_and_names_are_taken_as_they_are() -> None:
    for data in (prefill_data(**COMMON, **GROUP), decode_data(**COMMON)):
        told = parse_engine_argv(data.flags)
        assert (told["model_path"], told["served_model_name"]) == ("/there/model", "name")
        assert data.env["PLAIT_STATE_DIR"] == "/there/state"


def test_what_is_left_to_the_engine_has_no_flag() -> None:
    for data in (prefill_data(**COMMON, **GROUP), decode_data(**COMMON)):
        assert set(parse_engine_argv(data.flags)).isdisjoint({"context_length", "max_total_tokens"})


@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_is_asked_only_where_the_model_is_not_on_disk(offline: bool) -> None:
    for data in (prefill_data(**COMMON, **GROUP, offline=offline), decode_data(**COMMON, offline=offline)):
        assert ("HF_HUB_OFFLINE" in data.env) is ("TRANSFORMERS_OFFLINE" in data.env) is offline


def test_the_hosts_of_a_group_know_their_number_and_their_leader() -> None:
    told = parse_engine_argv(host_flags(hosts=2, rank="1", leader="leader:20000"))
    assert told == {"nnodes": 2, "node_rank": 1, "dist_init_addr": "leader:20000"}


@pytest.mark.parametrize(("ranks", "bound"), [(1, None), (2, "all|all"), (4, "all|all|all|all")])
def test_each_rank_on_a_cpu_is_bound_to_its_cores(ranks: int, bound: str | None) -> None:
    assert environment(cpu=True, ranks=ranks).get("SGLANG_CPU_OMP_THREADS_BIND") == bound
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in environment(cpu=False, ranks=ranks)
