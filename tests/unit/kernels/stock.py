"""Single files of the stock engine, loaded without the engine: the interpreter runs their kernels too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

DSA = "kernels/ops/attention/dsa"
_STUBS: dict[str, dict[str, Any]] = {
    "sglang.kernels.ops.quantization.fp8_kernel": {"is_fp8_fnuz": lambda: False},
    "sglang.srt.layers.attention.dsa.utils": {
        "INDEXER_K_CACHE_PRESHUFFLE_TILE": 16,
        "aiter_can_use_preshuffle_paged_mqa": lambda: False,
    },
    "sglang.srt.utils": {"get_bool_env_var": lambda name: False, "is_hip": lambda: False},
}


def stock(name: str) -> Any:
    """Module `name` of the stock DSA kernels; skips the test where the engine is not installed."""
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the engine is not installed")
    path = Path(next(iter(found.submodule_search_locations))) / DSA / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"stock_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    stubs = {}
    for stub, names in _STUBS.items():
        stubs[stub] = ModuleType(stub)
        stubs[stub].__dict__.update(names)
    with mock.patch.dict(sys.modules, stubs):
        spec.loader.exec_module(module)
    return module
