import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from plait.contract.validate.launch import validate_launch

CONFIG: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "vocab_size": 512,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_n_heads": 16,
    "index_head_dim": 128,
    "index_topk": 64,
}
FLAGS = [
    "--disaggregation-mode",
    "prefill",
    "--tp",
    "2",
    "--attn-cp-size",
    "2",
    "--enable-prefill-cp",
    "--cp-strategy",
    "interleave",
    "--disable-overlap-schedule",
]
SHARED = {"PLAIT_LAYOUT": "shared"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def fields(flags: list[str], environ: dict[str, str], version: str | None = "0.5.17") -> list[str]:
    return [v.field for v in validate_launch(flags, environ, engine_version=version)]


def test_a_good_launch_passes(model: Path) -> None:
    assert fields(["--model-path", str(model), *FLAGS], SHARED) == []
    assert fields(["--model-path", "org/name-on-a-hub", *FLAGS], SHARED) == []


def test_off_is_stock(model: Path) -> None:
    assert fields(["--what-is-this"], {}) == []


def test_settings_flags_and_model_are_told_together(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({**CONFIG, "index_topk_freq": 2}))
    flags = ["--model-path", str(model), *FLAGS, "--page-size", "1", "--nope"]
    assert fields(flags, SHARED, None) == [
        "--nope",
        "engine.version",
        "args.page_size",
        "model.index_topk_freq",
    ]
    assert fields(["--nope"], {"PLAIT_LAYOUT": "sharde"}) == ["PLAIT_LAYOUT", "--nope"]


def test_a_broken_config_is_named(model: Path) -> None:
    (model / "config.json").write_text("{")
    assert fields(["--model-path", str(model), *FLAGS], SHARED) == [str(model / "config.json")]


def test_no_model_is_refused() -> None:
    assert fields(FLAGS, SHARED) == ["--model-path"]


def test_refusal_comes_long_before_torch(model: Path) -> None:
    code = (
        "import sys; from plait.contract.validate import validate_launch\n"
        f"found = validate_launch({['--model-path', str(model), *FLAGS, '--page-size', '1']!r}, "
        f"{SHARED!r}, engine_version='0.5.17')\n"
        "assert [v.field for v in found] == ['args.page_size'], found\n"
        "assert not {'torch', 'sglang', 'transformers'} & set(sys.modules)"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert time.monotonic() - start < 3
