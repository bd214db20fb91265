"""Engine routes beside the prompts: a client gets none of them, however it spells them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.router.conformance.cases.case import CHAT, COMPLETIONS, GENERATE
from tests.router.conformance.process import Router
from tests.router.conformance.wire import Wire, request

SERVED = {CHAT, COMPLETIONS, GENERATE, "/v1/models", "/v1/models/{model:path}", "/health"}
# The routes of stock SGLang 0.5.17 (entrypoints/http_server.py) that its router must not pass on.
ADMIN = (
    "/abort_request",
    "/add_external_corpus",
    "/classify",
    "/clear_hicache_storage_backend",
    "/close_session",
    "/configure_logging",
    "/continue_generation",
    "/destroy_weights_update_group",
    "/detokenize",
    "/dump_expert_distribution_record",
    "/encode",
    "/flush_cache",
    "/freeze_gc",
    "/get_load",
    "/get_model_info",
    "/get_remote_instance_transfer_engine_info",
    "/get_server_info",
    "/get_weight_version",
    "/get_weights_by_name",
    "/health_generate",
    "/hicache/storage-backend",
    "/hicache/storage-backend/clear",
    "/init_weights_send_group_for_remote_instance",
    "/init_weights_update_group",
    "/invocations",
    "/list_external_corpora",
    "/load_lora_adapter",
    "/load_lora_adapter_from_tensors",
    "/model_info",
    "/open_session",
    "/parse_function_call",
    "/pause_generation",
    "/ping",
    "/plait/status",
    "/release_memory_occupation",
    "/remote_instance_transfer_engine_info",
    "/remove_external_corpus",
    "/resume_memory_occupation",
    "/send_weights_to_remote_instance",
    "/separate_reasoning",
    "/server_info",
    "/set_internal_state",
    "/set_trace_level",
    "/slow_down",
    "/start_expert_distribution_record",
    "/start_profile",
    "/stop_expert_distribution_record",
    "/stop_profile",
    "/tokenize",
    "/unload_lora_adapter",
    "/update_weight_version",
    "/update_weights_from_disk",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/update_weights_from_tensor",
    "/v1/audio/transcriptions",
    "/v1/classify",
    "/v1/detokenize",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/rerank",
    "/v1/responses",
    "/v1/responses/{response_id}",
    "/v1/responses/{response_id}/cancel",
    "/v1/score",
    "/v1/tokenize",
    "/weight_version",
    "/weights_checker",
)
# Ways round a router that joins an address and a path without looking.
DETOURS = (
    "/v1/models/../../flush_cache",
    "/v1/models/../flush_cache",
    "/v1/models/..%2f..%2fflush_cache",
    "/v1/models/%2e%2e/%2e%2e/flush_cache",
    "/v1/models/..\\..\\flush_cache",
    "/v1/models/./../../start_profile",
    "/v1/models/tiny/../../../flush_cache",
    "/v1/models/..;/..;/flush_cache",
    "/v1/models/tiny?x=/../../flush_cache",
    "/v1/models/tiny%3fx",
    "/v1/models/tiny%23x",
    "/v1/models//flush_cache",
    "/v1/models/@other.test/flush_cache",
    "/v1/models/http://other.test/flush_cache",
    "/flush_cache/../v1/models",
    "//flush_cache",
    "/v1/models/%0d%0aX-Evil:%201",
)


@pytest.mark.parametrize("target", ADMIN)
def test_admin_routes_of_engines_are_not_found(router: Router, target: str) -> None:
    with Wire(router.address) as wire:
        for method in ("GET", "POST", "PUT", "DELETE"):
            wire.send(request(method, target, b"{}"))
            answer = wire.reply()
            assert answer.status == 404, (method, answer)
            assert answer.json["error"]["code"] == "unknown_route"
    _assert_nothing_reached(router)


@pytest.mark.parametrize("target", DETOURS)
def test_detours(router: Router, target: str) -> None:
    """Whatever the answer is, no engine was asked for anything but its models."""
    with Wire(router.address) as wire:
        wire.send(request("GET", target))
        answer = wire.reply(method="GET")
        assert answer.status in (200, 400, 404), answer
        assert b"reached" not in answer.body
    _assert_nothing_reached(router)


@pytest.mark.parametrize("target", [GENERATE + "?x=../flush_cache", CHAT + "?a=b#c", CHAT + "?"])
def test_query_of_a_prompt_moves_nothing(router: Router, target: str) -> None:
    with Wire(router.address) as wire:
        wire.send(request("POST", target, b'{"text":"x","messages":[]}'))
        assert wire.reply().status in (200, 400)
    for engine in router.engines:
        assert engine.strays == []
        assert {seen.path.partition("?")[0] for seen in engine.prompts} <= {target.partition("?")[0]}


def test_the_list_is_the_engines_own() -> None:
    """Every route of the installed engine is served on purpose or named above."""
    site = Path(pytest.__file__).parents[1]
    source = site / "sglang/srt/entrypoints/http_server.py"
    if not source.exists():
        pytest.skip("sglang is not installed")
    found = set(re.findall(r'@app\.(?:get|post|put|delete|api_route)\(\s*"(/[^"]+)"', source.read_text()))
    assert len(found) > 60
    assert found - SERVED - {"/", "/dumper/{method}"} == set(ADMIN) - {"/plait/status"}


def _assert_nothing_reached(router: Router) -> None:
    assert [(e.prompts, e.strays, e.aborts) for e in router.engines] == [([], [], []), ([], [], [])]
