"""Collectives of the stock groups over gloo."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from plait.engine.install import implements


@implements("distributed.parallel_state.GroupCoordinator.__init__")
def group_without_nccl(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.arguments["use_pynccl"] = False
    original(*bound.args, **bound.kwargs)
    bound.arguments["self"].pynccl_comm = None


@implements("distributed.parallel_state.GroupCoordinator.all_gather_into_tensor")
def all_gather_into_tensor(self: Any, output: torch.Tensor, input: torch.Tensor) -> None:
    self._all_gather_into_tensor(output, input)


@implements("distributed.parallel_state.GroupCoordinator.reduce_scatter_tensor")
def reduce_scatter_tensor(self: Any, output: torch.Tensor, input: torch.Tensor) -> None:
    self._reduce_scatter_tensor(output, input)
