"""Check what was installed and put it in its place: `seal.py SITE OUT`, called by tree.sh.

Scripts and what tells where the tree was built are taken out, from RECORD too. OUT/plait-tree.json says what
is in it: {"plait": version, "files": count, "bytes": size, "sha256": digest over paths and contents}. The
injector and its tests go by it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import sys
from pathlib import Path

MARKER = "plait-tree.json"
_NOT_PURE = (".so", ".pyd", ".dylib", ".a", ".pyc")
_LEFT_OUT = ("direct_url.json", "uv_cache.json", "REQUESTED")


def main(site: Path, out: Path) -> None:
    """Move the tree at `site` to `out`. Ends the process with a message when it is not what it must be."""
    tops = {entry.name for entry in site.iterdir()}
    (metadata,) = sorted(site.glob("plait-*.dist-info"))
    stray = tops - {"plait", "bin", metadata.name} - {".lock"}
    if stray:
        sys.exit(f"seal.py: {', '.join(sorted(stray))}: the tree must hold Plait alone")
    shutil.rmtree(site / "bin", ignore_errors=True)
    (site / ".lock").unlink(missing_ok=True)
    for name in _LEFT_OUT:
        (metadata / name).unlink(missing_ok=True)
    for cache in list(site.rglob("__pycache__")):
        shutil.rmtree(cache)
    _rewrite_record(site, metadata / "RECORD")
    files = sorted(path for path in site.rglob("*") if path.is_file())
    compiled = [str(path.relative_to(site)) for path in files if path.suffix in _NOT_PURE]
    if compiled:
        sys.exit(f"seal.py: {', '.join(compiled)}: the tree must run under any Python, on any machine")
    told = {
        "plait": metadata.name.removesuffix(".dist-info").removeprefix("plait-"),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "sha256": digest(site, files),
    }
    (site / MARKER).write_text(json.dumps(told) + "\n")
    for path in site.rglob("*"):
        # Read by whoever the engine runs as.
        path.chmod(0o755 if path.is_dir() else 0o644)
    site.chmod(0o755)
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(site, out)
    print(f"{out}: plait {told['plait']}, {told['files']} files, {told['bytes'] / 1024:.0f} KiB")


def digest(site: Path, files: list[Path]) -> str:
    """Over the paths and contents of `files`, in order."""
    sum_ = hashlib.sha256()
    for path in files:
        sum_.update(f"{path.relative_to(site)}\0{path.stat().st_size}\0".encode())
        sum_.update(path.read_bytes())
    return sum_.hexdigest()


def _rewrite_record(site: Path, record: Path) -> None:
    rows = list(csv.reader(io.StringIO(record.read_text())))
    kept = [row for row in rows if row and (site / row[0]).exists()]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sorted(kept))
    record.write_text(text.getvalue())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
