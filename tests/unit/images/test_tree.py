"""The injected tree: Plait with its metadata, pure Python, nothing that the stock engine brings itself."""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
STOCK = "3.12"  # Python of the stock engine's image


def pythons() -> list[str]:
    """This interpreter, and the stock image's version where one is to be had."""
    homes = sorted(Path.home().glob(f".pyenv/versions/{STOCK}.*/bin/python{STOCK}"))
    candidates = [shutil.which(f"python{STOCK}"), *map(str, homes)]
    works = [p for p in candidates if p and not subprocess.run([p, "-c", ""], capture_output=True).returncode]
    return [sys.executable, *works[:1]]


def ask(python: str, tree: Path, code: str) -> str:
    """What `code` prints under `python` with the tree on its path and nothing else that is installed."""
    env = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [python, "-S", "-P", "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_the_engines_loader_finds_the_plugin(tree: Path, python: str) -> None:
    code = (
        "import importlib.metadata as m\n"
        "(e,) = m.entry_points(group='sglang.srt.plugins')\n"
        "print(e.name, e.dist.version, e.load().__module__)"
    )
    assert ask(python, tree, code) == f"plait {importlib.metadata.version('plait')} plait.engine.entry"


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_every_module_is_python_of_that_version(tree: Path, python: str) -> None:
    code = (
        f"import ast, pathlib\n"
        f"files = list(pathlib.Path({str(tree)!r}).rglob('*.py'))\n"
        "for file in files:\n"
        "    compile(file.read_bytes(), file, 'exec', dont_inherit=True)\n"
        "print(len(files))"
    )
    assert int(ask(python, tree, code)) > 100


def test_it_holds_plait_alone(tree: Path) -> None:
    version = importlib.metadata.version("plait")
    assert {each.name for each in tree.iterdir()} == {
        "plait",
        f"plait-{version}.dist-info",
        "plait-tree.json",
    }


def test_nothing_in_it_was_compiled(tree: Path) -> None:
    suffixes = {path.suffix for path in tree.rglob("*") if path.is_file()}
    assert suffixes <= {".py", ".typed", ".json", ".jinja", ".txt", ""}
    assert not list(tree.rglob("__pycache__"))


def test_data_files_are_in_it(tree: Path) -> None:
    for name in ("contract/validate/engine_args_0_5_17.json", "model/braids.txt"):
        assert (tree / "plait" / name).read_bytes() == (ROOT / "runtime/plait" / name).read_bytes()


def test_every_module_of_the_checkout_is_in_it(tree: Path) -> None:
    def modules(folder: Path) -> set[str]:
        return {str(file.relative_to(folder)) for file in folder.rglob("*.py")}

    assert modules(tree / "plait") == modules(ROOT / "runtime/plait")


def test_it_does_not_tell_where_it_was_built(tree: Path) -> None:
    for path in tree.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert str(tree.parent) not in text
            assert str(ROOT) not in text, path


def test_record_lists_what_is_there(tree: Path) -> None:
    (record,) = tree.glob("*.dist-info/RECORD")
    listed = {row[0] for row in csv.reader(record.read_text().splitlines())}
    there = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert listed == there - {"plait-tree.json"}


def test_the_marker_describes_it(tree: Path) -> None:
    told = json.loads((tree / "plait-tree.json").read_text())
    files = sorted(p for p in tree.rglob("*") if p.is_file() and p.name != "plait-tree.json")
    assert told == {
        "plait": importlib.metadata.version("plait"),
        "files": len(files),
        "bytes": sum(file.stat().st_size for file in files),
        "sha256": seal().digest(tree, files),
    }
    print(f"{told['files']} files, {told['bytes']} bytes")
    assert told["bytes"] < 4 << 20


def test_everybody_may_read_it(tree: Path) -> None:
    for path in [tree, *tree.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def test_no_other_distribution_has_a_package_of_its_name(tree: Path) -> None:
    owners = importlib.metadata.packages_distributions()
    assert set(owners["plait"]) == {"plait"}


def test_the_stock_engine_brings_all_that_plait_requires() -> None:
    """Else the tree would have to bring it: sglang's own requirements, followed through what is installed."""
    stock = closure("sglang")
    needed = {Requirement(text) for text in importlib.metadata.requires("plait") or []}
    missing = {
        str(need) for need in needed if need.marker is None and canonicalize_name(need.name) not in stock
    }
    assert not missing


def test_a_tree_is_never_written_over(tree: Path) -> None:
    command = [str(ROOT / "images/runtime/tree.sh"), str(tree), sys.executable]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert "is there already" in run.stderr


@pytest.mark.parametrize(
    ("name", "says"),
    [("numpy/__init__.py", "numpy: the tree must hold Plait alone"), ("plait/fast.so", "plait/fast.so")],
)
def test_what_must_not_be_in_it_is_refused(tree: Path, tmp_path: Path, name: str, says: str) -> None:
    site = tmp_path / "site"
    shutil.copytree(tree, site)
    (site / "plait-tree.json").unlink()
    (site / name).parent.mkdir(exist_ok=True)
    (site / name).touch()
    with pytest.raises(SystemExit, match=says):
        seal().main(site, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def closure(name: str) -> set[str]:
    """Canonical names of a distribution and of all that it requires without extras; absent ones by name."""
    seen: set[tuple[str, str]] = set()
    waiting = [(name, "")]
    while waiting:
        name, extra = waiting.pop()
        if (canonicalize_name(name), extra) in seen:
            continue
        seen.add((canonicalize_name(name), extra))
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": extra, "python_version": STOCK}):
                waiting += [(need.name, each) for each in ("", *need.extras)]
    return {name for name, _ in seen}


def seal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plait_image_seal", ROOT / "images/runtime/seal.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
