"""Folders become an image: a layer each, one tar (docker archive), without daemon or registry."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EPOCH: Final = "1970-01-01T00:00:00Z"


def write_image(
    out: Path,
    name: str,
    *layers: Mapping[str, Path | bytes | str],
    entrypoint: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    user: str = "",
    workdir: str = "/",
) -> None:
    """Write `out`, an archive of image `name` (`localhost/x:1`), with the content of `layers`, the lowest
    first, at its absolute paths. Equal files make an equal layer in every image: a node unpacks it once.

    A Path is copied: a file with its mode, a folder with all below, a link as what it points to. Bytes become
    a file, executable where it begins with `#!`. A str becomes a symbolic link to it. `user`: uid or uid:gid.
    Owners are root, times of files are kept: Python checks its byte code against them.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f"{out.name}.part")
    files = {f"layer-{number}.tar": out.with_name(f"{out.name}.{number}") for number in range(len(layers))}
    digests: list[str] = []
    try:
        for path, content in zip(files.values(), layers, strict=True):
            with path.open("wb+") as file:
                _write_layer(file, content)
                file.seek(0)
                digests.append(f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}")
        variables = {"PATH": _PATH, **(environment or {})}
        config: dict[str, Any] = {
            "Entrypoint": list(entrypoint) or None,
            "Env": [f"{key}={value}" for key, value in variables.items()],
            "WorkingDir": workdir,
            "User": user,
        }
        image = {
            "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
            "os": "linux",
            "created": _EPOCH,
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": digests},
            "history": [{"created": _EPOCH} for _ in digests],
        }
        described = json.dumps(image).encode()
        file_name = f"{hashlib.sha256(described).hexdigest()}.json"
        manifest = [{"Config": file_name, "RepoTags": [name], "Layers": list(files)}]
        with tarfile.open(part, "w") as archive:
            _add_bytes(archive, file_name, described)
            _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
            for member, path in files.items():
                entry = tarfile.TarInfo(member)
                entry.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(entry, file)
        part.rename(out)
    finally:
        for path in files.values():
            path.unlink(missing_ok=True)
        part.unlink(missing_ok=True)


def _write_layer(file: BinaryIO, content: Mapping[str, Path | bytes | str]) -> None:
    entries: dict[str, Path | bytes | str] = {}
    for target, source in content.items():
        if not target.startswith("/"):
            raise ValueError(f"path {target!r} in an image: must begin with /")
        if isinstance(source, Path) and source.is_dir():
            for below in sorted(source.rglob("*")):
                if below.is_file():
                    entries[f"{target.rstrip('/')}/{below.relative_to(source)}"] = below
            entries.setdefault(f"{target.rstrip('/')}/.keep", b"")
        else:
            entries[target] = source
    folders = {"/tmp"}
    for target in entries:
        folders.update(str(parent) for parent in Path(target).parents if str(parent) != "/")
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder.lstrip("/"))
            entry.type = tarfile.DIRTYPE
            # Folders of the caller's own (a home, say) may be closed to others; a container runs as anybody.
            entry.mode = 0o1777 if folder == "/tmp" else 0o755
            archive.addfile(entry)
        for target, source in sorted(entries.items()):
            _add(archive, target.lstrip("/"), source)


def _add(archive: tarfile.TarFile, target: str, source: Path | bytes | str) -> None:
    if isinstance(source, bytes):
        _add_bytes(archive, target, source)
    elif isinstance(source, str):
        entry = tarfile.TarInfo(target)
        entry.type, entry.linkname = tarfile.SYMTYPE, source
        archive.addfile(entry)
    else:
        real = source.resolve()
        entry = tarfile.TarInfo(target)
        entry.size = real.stat().st_size
        entry.mode = 0o755 if os.access(real, os.X_OK) else 0o644
        entry.mtime = int(real.stat().st_mtime)
        with real.open("rb") as opened:
            archive.addfile(entry, opened)


def _add_bytes(archive: tarfile.TarFile, target: str, content: bytes) -> None:
    entry = tarfile.TarInfo(target)
    entry.size = len(content)
    entry.mode = 0o755 if content.startswith(b"#!") else 0o644
    archive.addfile(entry, io.BytesIO(content))
