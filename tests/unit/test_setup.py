"""What setup.py compiles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_RUNTIME = _ROOT / "runtime"
_ROUTER = _RUNTIME / "plait" / "router"


def _hot() -> set[Path]:
    tree = ast.parse((_ROOT / "setup.py").read_text())
    (names,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "HOT"
    )
    return {_ROUTER / name for name in ast.literal_eval(names)}


def _module(path: Path) -> str:
    return ".".join(path.relative_to(_RUNTIME).with_suffix("").parts)


def _bases(path: Path) -> Iterator[tuple[str, str, str]]:
    """Class, the module that its base was imported from, and the base's name there."""
    tree = ast.parse(path.read_text())
    found = {
        name.asname or name.name: (node.module or "", name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in found:
                    yield node.name, *found[base.id]


def test_every_module_that_is_compiled_is_there() -> None:
    assert all(path.is_file() for path in _hot())


def test_a_class_under_a_compiled_one_is_compiled() -> None:
    """mypyc refuses, when the object is made, one of a class that it has not compiled."""
    hot = _hot()
    compiled = {_module(path) for path in hot}
    wrong = [
        f"{path.name}: {name}({base})"
        for path in _ROUTER.rglob("*.py")
        if path not in hot
        for name, module, base in _bases(path)
        if module in compiled
    ]
    assert wrong == []
