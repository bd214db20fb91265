"""The verdict: every check is in it, whatever the others do, and the command ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plait.contract.verdict import CheckResult, read_verdict
from plait.pod.asked import Asked
from plait.pod.checks.result import bad, good
from plait.pod.deadline import Deadline
from plait.pod.preflight import CHECKS, examine, read

Build = Callable[..., Asked]


def test_every_module_of_checks_is_made() -> None:
    folder = Path(sys.modules["plait.pod.checks"].__file__ or "").parent
    modules = {f"plait.pod.checks.{file.stem}" for file in folder.glob("*.py")}
    made = {check.__module__ for check in CHECKS.values()}
    assert made == modules - {"plait.pod.checks.__init__", "plait.pod.checks.result"}


def test_all_results_in_the_order_of_the_checks(asked: Build) -> None:
    def slow(_: Asked) -> list[CheckResult]:
        time.sleep(0.1)
        return [good("slow", 1), bad("slower", 2, reason="r", fix="f")]

    verdict = examine(asked(), {"slow": slow, "quick": lambda _: [good("quick", 3)]})
    assert [c.name for c in verdict.checks] == ["slow", "slower", "quick"]
    assert not verdict.ok


def test_a_check_that_hangs_fails_alone(asked: Build) -> None:
    never = threading.Event()

    def hang(_: Asked) -> list[CheckResult]:
        never.wait()
        return []

    verdict = examine(asked(deadline=Deadline(0.2)), {"hang": hang, "quick": lambda _: [good("quick", 1)]})
    never.set()
    assert [(c.name, c.ok) for c in verdict.checks] == [("hang", False), ("quick", True)]
    assert "within 0.2 s" in verdict.checks[0].reason


def test_an_error_in_a_check_is_a_no(asked: Build) -> None:
    verdict = examine(asked(), {"broken": lambda _: [good("x", 1 // 0)]})
    assert not verdict.ok
    assert "ZeroDivisionError" in verdict.failed[0].reason


def test_a_sound_pod_passes(asked: Build) -> None:
    # The rehearsal is tested with the engine room: it takes its time.
    checks = {name: check for name, check in CHECKS.items() if name != "hooks"}
    verdict = examine(asked(root=Path("/")), checks)
    assert verdict.failed == []
    names = ["engine", "plugin", "flags", "contract", "shm", "memlock", "rdma", "gpus", "peers"]
    assert [c.name for c in verdict.checks] == names


def test_the_command_line(tmp_path: Path) -> None:
    words = ["--contract", "c.json", "--gpus", "8", "--peer-access", "required", "--rdma-device", "mlx5_0"]
    words += ["--rdma-device", "mlx5_1", "--shm-bytes", "1024", "--deadline-s", "5", "--message", "m"]
    words += ["--", "--tp-size", "8", "--", "--x"]
    told, question = read(words, {"A": "b"})
    assert told.message == Path("m")
    assert question.rdma_devices == ("mlx5_0", "mlx5_1")
    assert question.flags == ("--tp-size", "8", "--", "--x")
    assert (question.gpus, question.peer_access, question.shm_bytes) == (8, "required", 1024)
    assert (question.environ, question.deadline.seconds) == ({"A": "b"}, 5.0)


def test_flags_of_the_engine_are_not_abbreviated_into_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--contract", "c", "--gpu", "8"]
    monkeypatch.setattr(sys, "argv", ["preflight", *words, "--", "--api-key", "secret"])
    with pytest.raises(SystemExit) as ended:
        read(words, {})
    assert ended.value.code == 2
    (wrong,) = read_verdict(capsys.readouterr().out).failed
    assert (wrong.name, wrong.value) == ("usage", "--contract c --gpu 8")


def test_a_pod_that_may_not_start(asked: Build, tmp_path: Path) -> None:
    """The whole command, in a pod whose engine is none: every check says its own no."""
    question = asked()
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "sglang.py").write_text("import time; time.sleep(60)")
    os.mkfifo(tmp_path / "pipe.json")
    message = tmp_path / "message"
    command = [sys.executable, "-m", "plait.pod.preflight", "--contract", str(tmp_path / "pipe.json")]
    command += ["--gpus", "0", "--deadline-s", "2", "--message", str(message), "--shm-bytes", str(1 << 60)]
    started = time.monotonic()
    run = subprocess.run(
        [*command, "--", *question.flags, "--page-size", "32"],
        env={**question.environ, "PYTHONPATH": str(stub), "PLAIT_COLOUR": "red", "SGLANG_PLUGINS": "other"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 1
    assert time.monotonic() - started < 15
    verdict = read_verdict(message.read_text())
    assert run.stdout.strip() == message.read_text()
    failed = {check.name: check for check in verdict.failed}
    assert set(failed) == {
        "plugin",
        "flags:PLAIT_COLOUR",
        "flags:--page-size",
        "contract",
        "shm",
        "hooks",
    }
    assert all(check.reason and check.fix for check in verdict.failed)
    assert "within 2 s" in failed["contract"].reason
    assert "within 2 s" in failed["hooks"].reason
    assert run.stderr.count("Fix: ") == len(failed)
