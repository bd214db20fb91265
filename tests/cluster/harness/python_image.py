"""What an image needs to run Python: this interpreter, and distributions with all that they require."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from tests.cluster.harness.failure import ClusterError

Content = dict[str, Path | bytes | str]

_LEFT_OUT: Final = (
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
    "site-packages",
)
_TAG: Final = sys.implementation.cache_tag
_REPOSITORY: Final = Path(__file__).parents[3]


def interpreter() -> Content:
    """Files of the base interpreter at the paths they have here, the libraries they load, a shell, and links
    /usr/local/bin/python3 and python to it."""
    return dict(_interpreter())


@functools.cache
def _interpreter() -> Content:
    python = Path(sys.executable).resolve()
    content: Content = {
        str(python): python,
        "/usr/local/bin/python3": str(python),
        "/usr/local/bin/python": str(python),
    }
    binaries = [python, Path("/bin/sh").resolve()]
    content["/bin/sh"] = binaries[1]
    for folder in {_base()["stdlib"], _base()["platstdlib"]}:
        for path in _files(Path(folder)):
            content[str(path)] = path
            if ".so" in path.name:
                binaries.append(path)
    for name in ("passwd", "group"):
        content[f"/etc/{name}"] = f"root:x:0:{'0:root:/:/bin/sh' if name == 'passwd' else ''}\n".encode()
    content["/etc/nsswitch.conf"] = b"hosts: files dns\n"
    # glibc loads these by name when it is asked for a host.
    for library in ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"):
        for place in ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64"):
            if (loaded := Path(place, library)).exists():
                binaries.append(loaded)
                content[str(loaded)] = loaded
                break
    return content | libraries(binaries)


def distributions(names: Iterable[str]) -> Content:
    """Files of installed distributions and of all they require, for the interpreter's own site-packages.

    `names` may carry extras (`plait[router]`). Of Plait itself only what it requires: see `sources`.
    """
    target = site_packages()
    content: Content = {}
    for name in sorted(_closure(names)):
        if name == "plait":
            continue
        distribution = metadata.distribution(name)
        for file in distribution.files or []:
            path = Path(str(distribution.locate_file(file)))
            # Scripts begin with this environment's interpreter, and lie beside it.
            if ".." in file.parts or not path.is_file():
                continue
            content[f"{target}/{file}"] = path
            content |= _byte_code(path, f"{target}/{file}")
    return content | libraries([p for p in content.values() if isinstance(p, Path) and ".so" in p.name])


def sources(*packages: str) -> Content:
    """Plait's own packages, `plait` or `plait_operator`, with the metadata that their version comes from."""
    target = site_packages()
    content: Content = {}
    for package in packages:
        room = "operator" if package == "plait_operator" else "runtime"
        folder = _REPOSITORY / room / package
        for path in _files(folder):
            content[f"{target}/{package}/{path.relative_to(folder)}"] = path
    distribution = metadata.distribution("plait")
    for name in ("METADATA", "entry_points.txt", "WHEEL", "top_level.txt"):
        if text := distribution.read_text(name):
            content[f"{target}/plait-{distribution.version}.dist-info/{name}"] = text.encode()
    return content


def site_packages() -> str:
    """Where the base interpreter looks for what is installed for all."""
    return _base()["site"]


@functools.cache
def _base() -> dict[str, str]:
    """Folders of the base interpreter, asked of itself: this one, of a virtual environment, has others."""
    told = (
        "{'site': site.getsitepackages()[0], **{k: sysconfig.get_path(k) for k in ('stdlib', 'platstdlib')}}"
    )
    ask = f"import json, site, sysconfig; print(json.dumps({told}))"
    python = str(Path(sys.executable).resolve())
    done = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def libraries(binaries: Iterable[Path]) -> Content:
    """The shared libraries that these load, at the paths at which they are found here."""
    found: Content = {}
    paths = [str(path) for path in binaries]
    for start in range(0, len(paths), 100):
        done = subprocess.run(
            ["ldd", *paths[start : start + 100]], capture_output=True, text=True, timeout=120
        )
        for line in done.stdout.splitlines():
            if match := re.match(r"\s+(?:\S+ => )?(/\S+) \(0x", line):
                library = Path(match[1])
                # Libraries that a wheel brings along are among its files.
                if "site-packages" not in library.parts:
                    found[str(library)] = library
    return found


def _files(folder: Path) -> list[Path]:
    """Files of a package or of the standard library, without what no image needs."""
    if not folder.is_dir():
        raise ClusterError(f"{folder} is not there: nothing to make an image of")
    kept = []
    for where, folders, names in os.walk(folder):
        if where == str(folder):
            # Pruned before they are walked: others' packages can be many. config-…: to link against Python.
            folders[:] = [n for n in folders if n not in _LEFT_OUT and not n.startswith("config-")]
        folders.sort()
        if where.endswith("/__pycache__"):
            # Byte code of other versions, and of other levels of optimisation.
            names = [name for name in names if name.endswith(f".{_TAG}.pyc")]
        kept += [Path(where, name) for name in sorted(names) if not name.endswith(".a")]
    return [path for path in kept if path.is_file()]


def _byte_code(path: Path, target: str) -> Content:
    """The byte code of a module, where there is some: without it a pod spends seconds on compiling."""
    if path.suffix != ".py":
        return {}
    cached = Path(cache_from_source(str(path)))
    return {cache_from_source(target): cached} if cached.exists() else {}


def _closure(names: Iterable[str]) -> set[str]:
    """Canonical names of these distributions and of all that they require here."""
    waiting = [Requirement(name) for name in names]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        told = (name, frozenset(wanted.extras))
        if told in seen:
            continue
        seen.add(told)
        try:
            needs = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            raise ClusterError(f"{name} is not installed in this environment: run make setup") from None
        for text in needs:
            need = Requirement(text)
            chosen = [{"extra": extra} for extra in (*wanted.extras, "")]
            if need.marker is None or any(need.marker.evaluate(environment) for environment in chosen):
                waiting.append(need)
    return {name for name, _ in seen}
