import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from plait.contract.validate.engine_args import KNOWN_VERSIONS, engine_args
from plait.contract.versions import installed_engine

TOOL = Path(__file__).parents[4] / "tools" / "engine_args.py"
ENGINE = importlib.util.find_spec("sglang") is not None and installed_engine() in KNOWN_VERSIONS


def test_table_of_every_known_version() -> None:
    for version in KNOWN_VERSIONS:
        table = engine_args(version)
        assert table.version == version
        assert table.required == ("model_path",)
        assert table.defaults["tp_size"] == 1
        assert table.by_flag["--tp-size"] is table.by_flag["--tensor-parallel-size"]
        assert table.by_flag["--model"].dest == "model_path"
        assert table.by_field["cuda_graph_max_bs_decode"].flags == ("--cuda-graph-max-bs-decode",)


def test_every_option_is_for_a_field_or_known_to_be_none() -> None:
    table = engine_args()
    strangers = {o.dest for o in table.options} - set(table.fields)
    assert strangers == {"config", "prefill_round_robin_balance", "collect_tokens_histogram"}


def test_unknown_version_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"0\.5\.16"):
        engine_args("0.5.16")


@pytest.mark.skipif(not ENGINE, reason="needs the engine that the table was made from")
def test_table_is_what_the_installed_engine_says() -> None:
    told = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr[-2000:]
