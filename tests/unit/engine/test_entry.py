"""The entry point never fails quietly, and does nothing when it is off."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time
from types import FrameType

import pytest
from tests.unit.engine.conftest import Outcome

from plait.engine import entry

pytestmark = pytest.mark.timeout(600)


def test_stop_prints_one_line_and_ends_with_the_configuration_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        entry.stop("this cannot be. Fix: that")
    assert end.value.code == 78
    assert capsys.readouterr().err == "plait: this cannot be. Fix: that\n"


def test_every_bad_setting_is_told_at_once(scenarios: dict[str, Outcome]) -> None:
    message = scenarios["bad_settings"].refusal
    assert "did you mean PLAIT_LAYOUT?" in message
    assert "PLAIT_PREFETCH = 'maybe'" in message
    assert "Traceback" not in scenarios["bad_settings"].err


def test_an_error_inside_the_plugin_is_not_swallowed_by_the_engine(scenarios: dict[str, Outcome]) -> None:
    message = scenarios["broken_hook_room"].refusal
    assert "the plugin could not be installed: ModuleNotFoundError" in message
    assert "plait.engine.admission" in message


def test_the_entry_point_alone_imports_nothing_heavy() -> None:
    script = (
        "import sys; import plait.engine.entry; "
        "print([n for n in ('torch', 'numpy', 'sglang', 'pydantic') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_entry_point_is_registered_with_the_engine() -> None:
    from importlib.metadata import entry_points

    [found] = [e for e in entry_points(group="sglang.srt.plugins") if e.name == "plait"]
    assert found.load() is entry.activate


def _stop_in_child() -> None:
    entry.stop("a scheduler cannot start")


def test_a_child_that_stops_tells_its_parent() -> None:
    """A server waits for its schedulers on a pipe; SIGQUIT is how stock schedulers end their server."""
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGQUIT, hear)
    try:
        child = multiprocessing.get_context("spawn").Process(target=_stop_in_child)
        child.start()
        child.join(120)
        assert child.exitcode == 78
        deadline = time.monotonic() + 10
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
        assert heard == [signal.SIGQUIT]
    finally:
        signal.signal(signal.SIGQUIT, before)
