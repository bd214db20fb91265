"""The plan is data: who runs with which flags, ports, logs, and what makes each ready."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from plait.stack.plan import StackOptions, StackPorts, curl_line, plan_stack

OPTIONS = StackOptions(
    model=Path("/models/tiny"),
    cp=4,
    decode=2,
    layout="shared",
    split="page-zigzag",
    chunk=128,
    context_length=2048,
    max_total_tokens=4096,
    decode_max_total_tokens=8192,
    prefill_args=("--max-running-requests", "3"),
    decode_args=("--log-requests",),
    folder=Path("/runs/one"),
)
PORTS = StackPorts(router=1, prefill=2, bootstrap=3, decode=(4, 5))


def _flag(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_names_ports_and_logs_are_all_different() -> None:
    children = plan_stack(OPTIONS, PORTS).children
    assert [child.name for child in children] == ["prefill", "decode-0", "decode-1", "router"]
    assert [child.ports for child in children] == [(2, 3), (4,), (5,), (1,)]
    assert [child.log for child in children] == [Path(f"/runs/one/{child.name}.log") for child in children]
    folders = [child.env["PLAIT_STATE_DIR"] for child in children[:3]]
    assert len(set(folders)) == 3


def test_the_prefill_group_gets_ranks_layout_chunk_and_pool() -> None:
    prefill = plan_stack(OPTIONS, PORTS).children[0]
    assert _flag(prefill.argv, "--attn-cp-size") == "4"
    assert _flag(prefill.argv, "--chunked-prefill-size") == "128"
    assert _flag(prefill.argv, "--max-total-tokens") == "4096"
    assert _flag(prefill.argv, "--context-length") == "2048"
    assert _flag(prefill.argv, "--max-running-requests") == "3"
    assert "--log-requests" not in prefill.argv
    assert (prefill.env["PLAIT_LAYOUT"], prefill.env["PLAIT_SPLIT"]) == ("shared", "page-zigzag")


def test_replicated_differs_from_shared_in_nothing_but_the_layout() -> None:
    shared = plan_stack(OPTIONS, PORTS)
    replicated = plan_stack(dataclasses.replace(OPTIONS, layout="replicated"), PORTS)
    assert [child.argv for child in shared.children] == [child.argv for child in replicated.children]
    for one, other in zip(shared.children, replicated.children, strict=True):
        changed = {key for key in one.env if one.env[key] != other.env[key]}
        assert changed == ({"PLAIT_LAYOUT"} if one.name == "prefill" else set())


def test_decode_engines_are_plain_and_have_their_own_pool() -> None:
    for child in plan_stack(OPTIONS, PORTS).children[1:3]:
        assert child.env["PLAIT_LAYOUT"] == "plain"
        assert _flag(child.argv, "--max-total-tokens") == "8192"
        assert "--log-requests" in child.argv


def test_engines_are_ready_when_all_ranks_report_and_the_log_says_so() -> None:
    prefill, decode, _, router = plan_stack(OPTIONS, PORTS).children
    assert prefill.probe == ("http://127.0.0.1:2/plait/status", 4, "fired up")
    assert decode.probe == ("http://127.0.0.1:4/plait/status", 1, "fired up")
    assert router.probe == ("http://127.0.0.1:1/ready", 0, "")


def test_the_router_knows_every_engine() -> None:
    argv = plan_stack(OPTIONS, PORTS).children[-1].argv
    assert _flag(argv, "--prefill") == "http://127.0.0.1:2,3"
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "--decode"] == [
        "http://127.0.0.1:4",
        "http://127.0.0.1:5",
    ]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("192.0.2.7", "http://192.0.2.7:1"),
        ("::", "http://[::1]:1"),
    ],
)
def test_only_the_router_listens_where_others_can_reach_it(host: str, url: str) -> None:
    plan = plan_stack(dataclasses.replace(OPTIONS, host=host), PORTS)
    assert [_flag(child.argv, "--host") for child in plan.children] == ["127.0.0.1"] * 3 + [host]
    assert plan.router_url == url
    assert plan.children[-1].probe.url == f"{url}/ready"
    assert url in curl_line(plan)


def test_on_gpus_every_engine_has_its_own_devices() -> None:
    options = dataclasses.replace(OPTIONS, cpu=False, devices=("7", "6", "5", "4", "3", "2"))
    visible = [child.env.get("CUDA_VISIBLE_DEVICES") for child in plan_stack(options, PORTS).children]
    assert visible == ["7,6,5,4", "3", "2", None]


def test_pools_without_a_number_are_left_to_the_engines() -> None:
    options = dataclasses.replace(OPTIONS, cpu=False, max_total_tokens=None, decode_max_total_tokens=None)
    for child in plan_stack(options, PORTS).children:
        assert "--max-total-tokens" not in child.argv


def test_a_port_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ports.decode=\(4,\): needs 2 ports"):
        plan_stack(OPTIONS, PORTS._replace(decode=(4,)))


def test_the_curl_line_is_one_shell_command_with_a_json_body() -> None:
    words = shlex.split(curl_line(plan_stack(OPTIONS, PORTS)))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:1/v1/chat/completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert body["stream"] is True
    assert body["messages"][0]["role"] == "user"
