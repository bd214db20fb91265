"""Triton's interpreter, with float conversions that round as the hardware does.

Triton 3.6's `_convert_float` rounds half up without carrying into the exponent (1.9999 becomes 1.0 in bf16):
good enough for tolerances, useless for bytes. Here torch converts, which rounds to nearest even as the GPU's
conversions do. Importing this module repairs the interpreter of its process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.runtime.interpreter as interpreter

_TORCH = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_NUMPY = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def _converted(values: np.ndarray[Any, Any], source: Any, target: Any, rounding: Any) -> Any:
    del rounding
    kind = _TORCH[source.name]
    bits = torch.from_numpy(np.ascontiguousarray(values).view(_NUMPY[values.dtype.itemsize]).copy())
    result = bits.view(kind).to(_TORCH[target.name])
    size = result.element_size()
    return result.view(_BITS[size]).numpy().view(_NUMPY[size]).reshape(values.shape)


interpreter._convert_float = _converted
