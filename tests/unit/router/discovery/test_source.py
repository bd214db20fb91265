"""Every kind of source is one to the router, and the cheap part of the package stays cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from plait.router.discovery.file import FileSource
from plait.router.discovery.kubernetes.access import Access
from plait.router.discovery.kubernetes.settings import KubernetesSettings
from plait.router.discovery.kubernetes.source import KubernetesSource
from plait.router.discovery.source import Source
from plait.router.discovery.static import StaticSource


def test_all_kinds_are_sources() -> None:
    access = Access("http://127.0.0.1:1", "pool", None, None)
    sources: list[Source] = [
        StaticSource(()),
        FileSource(Path("workers.yaml")),
        KubernetesSource(KubernetesSettings(), access),
    ]
    assert [s.kind for s in sources] == ["flags", "file", "kubernetes"]
    for source in sources:
        assert (source.synced, source.problem, source.age) == (False, "", None)
        assert not source.skipped
        assert not source.counts


def test_nothing_heavy_is_imported_before_a_source_starts() -> None:
    code = (
        "import sys\n"
        "import plait.router.discovery.file, plait.router.discovery.static\n"
        "import plait.router.discovery.kubernetes.source\n"
        "print([m for m in ('aiohttp', 'pydantic', 'yaml') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
