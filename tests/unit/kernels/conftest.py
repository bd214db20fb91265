"""The kernels' tests run under Triton's interpreter, in one process of their own.

The interpreter is chosen by TRITON_INTERPRET before `import triton`, for a whole process; other tests of a
run import triton through the engine, compiled. So the files in `INTERPRETED` are collected here as one item
each, and a single child pytest runs them all. `TRITON_INTERPRET=1 pytest tests/unit/kernels/test_pull.py`
runs one of them in the foreground.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as Xml
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INTERPRETED = frozenset(
    {
        "test_convert.py",
        "test_gpu_cases.py",
        "test_pages.py",
        "test_pull.py",
        "test_read_index.py",
        "test_rerange.py",
        "test_row_range.py",
        "test_store_index.py",
        "test_store_mla.py",
        "test_trials.py",
    }
)
INSIDE = os.environ.get("TRITON_INTERPRET") == "1"
WITHIN_S = 540.0

_results: dict[str, list[str]] = {}


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if INSIDE or module_path.name not in INTERPRETED:
        return None
    return InterpretedFile.from_parent(parent, path=module_path)


class InterpretedFile(pytest.File):
    """A test file, as one test."""

    def collect(self) -> Iterator[pytest.Item]:
        item = InterpretedItem.from_parent(self, name="interpreted")
        item.add_marker(pytest.mark.timeout(WITHIN_S + 60))
        yield item


class InterpretedItem(pytest.Item):
    """Fails with what the file's tests failed with in the child, and if it ran no test there, or skipped one
    (for want of the engine: then nothing was compared with stock)."""

    def runtest(self) -> None:
        if not _results:
            files = {item.path.name for item in self.session.items if isinstance(item, InterpretedItem)}
            _results.update(run_all(sorted(files)))
        cases = _results[self.path.name]
        assert cases, f"{self.path.name} ran no test under the interpreter:\n{_results['output'][0]}"
        failures = [case for case in cases if case]
        assert not failures, f"{len(failures)} of {len(cases)} failed:\n" + "\n".join(failures)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name} under Triton's interpreter"


def run_all(files: list[str]) -> dict[str, list[str]]:
    """Per file, one entry per test: empty if it passed, else what was wrong; `output`: the child's words."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        child = subprocess.run(
            [*command, *(str(HERE / name) for name in files)],
            env={**os.environ, "TRITON_INTERPRET": "1"},
            cwd=HERE.parents[2],
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        results: dict[str, list[str]] = {name: [] for name in files}
        results["output"] = [child.stdout[-4000:] + child.stderr[-4000:]]
        if not report.exists():
            return results
        for case in Xml.parse(report).getroot().iter("testcase"):
            name = case.get("classname", "").rsplit(".", 1)[-1] + ".py"
            wrong = [note for note in case if note.tag in ("failure", "error", "skipped")]
            results.setdefault(name, []).append(
                "\n".join(f"{case.get('name')}: {note.text or note.get('message')}" for note in wrong)
            )
        return results
