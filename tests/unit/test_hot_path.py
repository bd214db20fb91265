"""What runs in a forward costs the host nothing per layer: no device sync, no list to tensor, no log line.

Two ways: the source of the rooms that run in a forward is scanned, and the layers of a batch are traced.
Per batch, one copy of page ids from the device and one of the plan to it are allowed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import plait
from plait.contract.layouts import PAGE_SIZE
from plait.gather import (
    CollectiveExchange,
    DenseView,
    GatherPlan,
    GatherRequest,
    GatherStats,
    Scratch,
    ScratchShape,
)

ROOT = Path(plait.__file__).parent
ROOMS = (
    "gather/*.py",
    "kernels/*.py",
    "engine/allocator.py",
    "engine/faults.py",
    "engine/forward.py",
    "engine/host_pages.py",
    "engine/index_path.py",
    "engine/page_hooks.py",
    "engine/pool.py",
    "engine/strategy.py",
    "engine/tail.py",
)
NOT_IN_A_FORWARD = ("gather/measure.py", "gather/reference.py", "kernels/trials.py")
"""What runs at the start, and the plain reference that tests compare with. (engine/cpu/** is left out of
ROOMS: kernels in torch that stand in for a GPU's, where time does not matter.)"""

PER_LAYER = {
    "gather/batch.py": ("BatchGather.consume",),
    "gather/copy_engine.py": (
        "CudaMover.land",
        "HostMover.land",
        "_Landing.done",
        "_Landing.wait",
    ),
    "gather/peer_exchange.py": ("Spans.of", "_Chunk.launch", "_Prefix.launch"),
    "gather/peer_view.py": ("PeerView.consume",),
    "gather/exchange.py": ("_CollectiveFetch.launch", "_Gathering.*", "Landed.*"),
    "gather/scratch.py": ("Scratch.tensor", "Scratch.rows"),
    "gather/view.py": (
        "DenseView.consume",
        "DenseView._exchange",
        "DenseView._finish_prefix",
        "DenseView._launch",
    ),
    "engine/faults.py": ("shifted_rows",),
    "engine/index_path.py": ("attend_over_flat_list", "rows_at_once", "should_chunk_logits"),
    "engine/pool.py": ("OwnedPagePool.get_*", "OwnedPagePool._dense_index", "_DenseIndex.*"),
    "engine/strategy.py": (
        "OwnerSplitStrategy._gather_interleaved_tensor",
        "OwnerSplitStrategy.materialize_*",
    ),
}
"""Functions that run in every layer, by file; the rest of the rooms runs once a batch."""

LISTS_TO_TENSORS = ("tensor", "as_tensor", "Tensor", "LongTensor", "IntTensor", "BoolTensor", "FloatTensor")
LOGS = ("debug", "info", "warning", "error", "exception", "critical", "log", "warn")
SYNCS = ("tolist", "cpu", "numpy", "nonzero", "unique", "synchronize", "argwhere", "masked_select")


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every function with its dotted name; what a function defines inside belongs to it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node


def calls(node: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    """(owner, name, call) of every call: `torch.tensor(x)` is ("torch", "tensor")."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        if isinstance(call.func, ast.Attribute):
            yield ast.unparse(call.func.value), call.func.attr, call
        elif isinstance(call.func, ast.Name):
            yield "", call.func.id, call


def offences(source: str, per_layer: tuple[str, ...] = ()) -> list[str]:
    """What `source` does that a forward must not do, as "function:line: what"."""
    found = []
    for name, function in functions(ast.parse(source)):
        in_layer = any(fnmatch(name, pattern) for pattern in per_layer)
        for owner, called, call in calls(function):
            what = None
            if called == "item":
                what = "a device sync (.item)"
            elif owner == "torch" and called in LISTS_TO_TENSORS:
                what = f"host values made a tensor (torch.{called})"
            elif called == "print" or (called in LOGS and "log" in owner.lower()) or owner == "warnings":
                what = f"output ({called})"
            elif called in ("to", "cuda") and owner.startswith("torch.from_numpy("):
                what = "a copy that the host waits for (pageable memory; gather/upload.py has another)"
            elif in_layer and called in SYNCS:
                what = f"a device sync in each layer (.{called})"
            elif in_layer and (owner, called) == ("torch", "from_numpy"):
                what = "a copy from the host in each layer (torch.from_numpy)"
            if what:
                found.append(f"{name}:{call.lineno}: {what}")
    return found


def scanned() -> list[str]:
    names = {str(path.relative_to(ROOT)) for room in ROOMS for path in ROOT.glob(room)}
    return sorted(names - set(NOT_IN_A_FORWARD))


@pytest.mark.parametrize("name", scanned())
def test_nothing_in_a_forward_waits_for_the_device_or_writes_a_line(name: str) -> None:
    assert offences((ROOT / name).read_text(), PER_LAYER.get(name, ())) == []


def test_the_scan_covers_what_it_names() -> None:
    assert set(PER_LAYER) <= set(scanned())
    assert all((ROOT / name).exists() for name in NOT_IN_A_FORWARD)
    for name, patterns in PER_LAYER.items():
        known = [function for function, _ in functions(ast.parse((ROOT / name).read_text()))]
        for pattern in patterns:
            assert any(fnmatch(function, pattern) for function in known), f"{name}: no function {pattern}"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("n = lengths.sum().item()", ".item"),
        ("t = torch.tensor([1, 2])", "torch.tensor"),
        ("t = torch.tensor(rows, device=device)", "torch.tensor"),
        ("t = torch.as_tensor(rows)", "torch.as_tensor"),
        ("t = torch.LongTensor(rows)", "torch.LongTensor"),
        ("t = torch.from_numpy(rows).to(device, non_blocking=True)", "pageable"),
        ("print(layer)", "print"),
        ("logger.info('layer %d', layer)", "info"),
        ("logging.warning('layer')", "warning"),
        ("self._log.debug('layer')", "debug"),
        ("warnings.warn('layer')", "warn"),
    ],
)
def test_a_bad_line_is_found_wherever_it_stands(line: str, what: str) -> None:
    source = f"class A:\n    def begin(self):\n        def inner():\n            {line}\n"
    [found] = offences(source)
    assert found.startswith("A.begin:4: ")
    assert what in found


@pytest.mark.parametrize(
    "line",
    ["x = a.tolist()", "x = a.cpu()", "x = a.nonzero()", "x = torch.unique(a)", "x = torch.from_numpy(a)"],
)
def test_a_line_that_may_run_once_a_batch_is_found_in_a_layer(line: str) -> None:
    source = f"class A:\n    def consume(self):\n        {line}\n    def begin(self):\n        {line}\n"
    assert offences(source) == []
    [found] = offences(source, ("A.con*",))
    assert found.startswith("A.consume:3: ")


class Trace(TorchDispatchMode):
    """Names of the tensor operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


SYNCING = {
    "aten._local_scalar_dense",
    "aten.nonzero",
    "aten.lift_fresh",
    "aten._unique2",
    "aten.masked_select",
}


def traced(work: Callable[[], object]) -> list[str]:
    with Trace() as trace:
        work()
    return trace.names


@pytest.mark.parametrize("prefetch", [True, False])
def test_a_layer_runs_the_same_few_operations_and_none_that_waits(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    prefetch: bool,
) -> None:
    class Done:
        def is_completed(self) -> bool:
            return True

        def wait(self) -> None: ...

    def all_gather(out: torch.Tensor, given: torch.Tensor, **_: object) -> Done:
        out.view(2, -1)[0] = given.view(-1)
        return Done()

    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(dist, "all_gather_into_tensor", all_gather)
    layers = 6
    sources = [torch.zeros(9, PAGE_SIZE, dtype=torch.uint8) for _ in range(layers)]
    exchange = CollectiveExchange(None)
    view = DenseView(
        sources,
        Scratch(ScratchShape(8, (PAGE_SIZE,), torch.uint8), device=torch.device("cpu")),
        ahead=exchange,
        now=exchange,
        prefetch=prefetch,
        stats=GatherStats(),
    )
    pages = np.arange(2, 9)
    plan = GatherPlan.from_requests(
        [GatherRequest(4 * PAGE_SIZE, 2 * PAGE_SIZE + 1, pages)], ranks=2, budget=8
    )
    view.begin(plan, rank=0, device=torch.device("cpu"))
    per_layer = [traced(lambda layer=layer: view.consume(layer)) for layer in range(layers)]
    assert not SYNCING & {name for names in per_layer for name in names}
    assert per_layer[0] == per_layer[1] == per_layer[layers - 2]
    assert len(per_layer[0]) < 20
    assert capsys.readouterr() == ("", "")
    assert caplog.records == []


@pytest.mark.parametrize(
    "bad",
    [
        lambda: torch.ones(3).sum().item(),
        lambda: bool((torch.ones(3) > 0).any()),
        lambda: torch.tensor([1, 2]),
        lambda: torch.ones(3).nonzero(),
        lambda: torch.ones(3).unique(),
    ],
)
def test_the_trace_sees_what_waits(bad: Callable[[], object]) -> None:
    assert SYNCING & set(traced(bad))
