"""The cases of the GPU script hold under the interpreter too: small ones, with holes and without."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.kernel_cases import KINDS
from tests.gpu.kernel_inputs import Maker
from tests.unit.kernels import interpreter  # noqa: F401


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("rows", "holes"), [(67, False), (130, True)])
def test_kernel_and_reference_agree(name: str, rows: int, holes: bool) -> None:
    kind = KINDS[name]
    case = kind.build(Maker(rows, torch.device("cpu"), holes=holes), rows)
    case.check(kind.configs[rows % len(kind.configs)])
    assert case.nbytes > 0
