"""How a rehearsal's end becomes a result; the engine is a stand-in, the process is real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plait.pod.asked import Asked
from plait.pod.checks import hooks
from plait.pod.deadline import Deadline

TAKEN = """
class _Target:
    path = "sglang.srt.x"
    class kind:
        value = "around"
    why = "so"
class _Hook:
    target = _Target
def load_plugins():
    import sys, types
    sys.modules["plait.engine.state"] = types.SimpleNamespace(hooks=[_Hook, _Hook])
"""


def ask(asked: Callable[..., Asked], tmp_path: Path, plugins: str, *, seconds: float = 60) -> Asked:
    """A pod whose `sglang.srt.plugins` is this text."""
    folder = tmp_path / "stub/sglang/srt"
    folder.mkdir(parents=True)
    (folder / "plugins.py").write_text(plugins)
    for each in (folder, folder.parent):
        (each / "__init__.py").write_text("")
    return asked(env={"PYTHONPATH": str(tmp_path / "stub")}, deadline=Deadline(seconds))


def test_hooks_that_take(asked: Callable[..., Asked], tmp_path: Path) -> None:
    (result,) = hooks.check(ask(asked, tmp_path, TAKEN))
    assert (result.ok, result.value) == (True, "2 in force")


@pytest.mark.parametrize(
    ("plugins", "says"),
    [
        ("def load_plugins(): pass", "did not load the plugin"),
        ("raise ImportError('no libcuda')", "no libcuda"),
        (
            "import sys; print('plait: hook target is missing: x', file=sys.stderr); sys.exit(78)",
            "hook target is missing: x",
        ),
        ("import os; os._exit(9)", "said nothing"),
    ],
)
def test_hooks_that_do_not(asked: Callable[..., Asked], tmp_path: Path, plugins: str, says: str) -> None:
    (result,) = hooks.check(ask(asked, tmp_path, plugins))
    assert not result.ok
    assert says in result.reason
    assert "engine.image" in result.fix


def test_an_engine_that_does_not_load(asked: Callable[..., Asked], tmp_path: Path) -> None:
    (result,) = hooks.check(ask(asked, tmp_path, "import time; time.sleep(60)", seconds=1.5))
    assert not result.ok
    assert "within 1.5 s" in result.reason
