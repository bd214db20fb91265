import argparse

import pytest

from plait.contract.validate.argv import field_of, parse_engine_argv, read_engine_argv
from plait.contract.validate.engine_args import engine_args
from plait.contract.violation import ContractError


def refused(*argv: str) -> dict[str, str]:
    with pytest.raises(ContractError) as caught:
        parse_engine_argv(argv)
    return {v.field: f"{v.reason} | {v.fix}" for v in caught.value.violations}


def test_nothing_is_all_defaults() -> None:
    assert parse_engine_argv([]) == {}


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        (["--model-path", "/m"], {"model_path": "/m"}),
        (["--model", "/m"], {"model_path": "/m"}),
        (["--model-path=/m=1"], {"model_path": "/m=1"}),
        (["--tp-size", "4"], {"tp_size": 4}),
        (["--tensor-parallel-size", "4"], {"tp_size": 4}),
        (["--tp", "4"], {"tp_size": 4}),
        (["--chunked-prefill-size", "-1"], {"chunked_prefill_size": -1}),
        (["--max-total-tokens", "8k"], {"max_total_tokens": 8000}),
        (["--max-total-tokens", "8Ki"], {"max_total_tokens": 8192}),
        (["--max-total-tokens", "25.6k"], {"max_total_tokens": 25600}),
        (["--mem-fraction-static", "0.2"], {"mem_fraction_static": 0.2}),
        (["--disable-radix-cache"], {"disable_radix_cache": True}),
        (["--no-dllm-fdfo"], {"dllm_fdfo": False}),
        (["--dllm-fdfo"], {"dllm_fdfo": True}),
        (["--disable-cuda-graph"], {"disable_cuda_graph": True}),
        (["--disable-piecewise-cuda-graph"], {"cuda_graph_backend_prefill": "disabled"}),
        (["--dsa-prefill-cp-mode", "round-robin-split"], {"dsa_prefill_cp_mode": "round-robin-split"}),
        (["--cuda-graph-bs-decode", "1", "2", "--port", "3"], {"cuda_graph_bs_decode": [1, 2], "port": 3}),
        (["--lora-paths", "a=1", "b"], {"lora_paths": ["a=1", "b"]}),
        (["--model-checksum"], {"model_checksum": ""}),
        (["--default-chat-template-kwargs", '{"a": 1}'], {"default_chat_template_kwargs": {"a": 1}}),
        (["--quantization-param-path", "None"], {"quantization_param_path": None}),
        (["--port", "1", "--port", "1"], {"port": 1}),
        (["--collect-tokens-histogram"], {}),
    ],
)
def test_flags_are_read(argv: list[str], values: dict[str, object]) -> None:
    assert parse_engine_argv(argv) == values


def test_all_faults_are_told_at_once() -> None:
    said = refused("--pag-size", "3", "--tp-size", "two", "stray", "--port", "--host", "h", "--enable-lora=1")
    assert set(said) == {"--pag-size", "--tp-size", "stray", "--port", "--enable-lora"}
    assert "--page-size" in said["--pag-size"]
    assert "whole number" in said["--tp-size"]
    assert "needs a value" in said["--port"]


def test_an_ambiguous_abbreviation_names_what_it_may_mean() -> None:
    said = refused("--max-lo", "3")
    assert "--max-lora-rank" in said["--max-lo"]


@pytest.mark.parametrize(
    "argv",
    [
        ("--tp-size", "2", "--tensor-parallel-size", "4"),
        ("--dllm-fdfo", "--no-dllm-fdfo"),
        ("--disable-piecewise-cuda-graph", "--enforce-piecewise-cuda-graph"),
    ],
)
def test_a_flag_that_contradicts_an_earlier_one_is_refused(argv: tuple[str, ...]) -> None:
    [reason] = refused(*argv).values()
    assert "contradicts" in reason


@pytest.mark.parametrize("argv", [("--config", "f.yaml"), ("--config=f.yaml",)])
def test_a_second_source_of_flags_is_refused(argv: tuple[str, ...]) -> None:
    assert set(refused(*argv)) == {"--config"}


@pytest.mark.parametrize(
    ("flag", "text"),
    [("--max-total-tokens", "1.5Ki"), ("--mem-fraction-static", "x"), ("--preferred-sampling-params", None)],
)
def test_malformed_values_name_their_flag(flag: str, text: str | None) -> None:
    assert set(refused(flag, *([text] if text else []))) == {flag}


def test_what_can_be_read_is_read() -> None:
    values, bad = read_engine_argv(["--nope", "--page-size", "1"])
    assert values == {"page_size": 1}
    assert [v.field for v in bad] == ["--nope"]


def test_agrees_with_argparse_on_every_value_option() -> None:
    types = {"int": int, "human_int": int, "float": float}
    for option in engine_args().options:
        if option.form != "value" or option.type not in ("int", "str", "float") or option.dest == "config":
            continue
        parser = argparse.ArgumentParser()
        parser.add_argument(
            *option.flags, dest=option.dest, nargs=option.nargs, type=types.get(option.type, str)
        )
        argv = [option.flags[-1], "3"]
        assert parse_engine_argv(argv) == vars(parser.parse_args(argv)), option


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("page_size", "page_size"),
        ("--page-size", "page_size"),
        ("page-size", "page_size"),
        ("--model", "model_path"),
        ("tp", None),
        ("--sleep-on-idle", "sleep_on_idle"),
        ("--disable-piecewise-cuda-graph", None),
        ("--no-dllm-fdfo", None),
        ("--config", None),
        ("nope", None),
    ],
)
def test_field_of(key: str, field: str | None) -> None:
    assert field_of(key, engine_args()) == field
