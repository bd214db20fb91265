from typing import Any

from plait.contract.config import StackConfig
from plait.contract.validate.engine_args import engine_args
from plait.contract.validate.sides import Side
from plait.contract.violation import Violation


def prefill(found: list[Violation], **args: Any) -> Side:
    config = StackConfig.model_validate(
        {"model": {"path": "/m"}, "prefill": {"contextParallel": 4, "args": args}, "cache": {"dtype": "bf16"}}
    )
    return Side.prefill(config, engine_args(), found)


def test_arguments_come_from_the_configuration_and_from_args() -> None:
    found: list[Violation] = []
    side = prefill(found, **{"--chunked-prefill-size": 128, "random_seed": 3})
    assert found == []
    assert side.args["attn_cp_size"] == side.args["tp_size"] == 4
    assert side.args["model_path"] == "/m"
    assert (side.args["chunked_prefill_size"], side.args["random_seed"]) == (128, 3)
    assert side.args["disaggregation_mode"] == "prefill"


def test_decode_is_not_context_parallel() -> None:
    found: list[Violation] = []
    side = Side.decode(StackConfig(), engine_args(), found)
    assert side.args["disaggregation_mode"] == "decode"
    assert "attn_cp_size" not in side.args
    assert found == []


def test_sources_are_where_the_user_wrote_it() -> None:
    side = prefill([], **{"--page-size": 1})
    assert side.source("prefill.args.page_size") == "prefill.args.--page-size"
    assert side.source("prefill.args.attn_cp_size") == "prefill.contextParallel"
    assert side.source("prefill.args.kv_cache_dtype") == "cache.dtype"
    assert side.source("prefill.args.enable_lora") == "prefill.args.enable_lora"
    assert side.source("PLAIT_SPLIT") == "cache.split"
    assert side.source("engine.version") == "engine.version"


def test_contradictions_are_told() -> None:
    found: list[Violation] = []
    prefill(found, tp_size=8, **{"--port": 1, "port": 2, "nope": 1})
    assert {v.field for v in found} == {"prefill.args.tp_size", "prefill.args.port", "prefill.args.nope"}
    assert "prefill.contextParallel" in found[0].reason


def test_what_the_configuration_says_twice_alike_is_no_contradiction() -> None:
    found: list[Violation] = []
    prefill(found, tp_size=4, kv_cache_dtype="bf16", model_path="/m")
    assert found == []
