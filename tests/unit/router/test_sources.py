"""The source of workers that a configuration names."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from plait.router.config import ConfigError, PrefillTarget, RouterConfig
from plait.router.discovery.kubernetes.settings import KubernetesSettings
from plait.router.discovery.source import Source
from plait.router.discovery.target import Target, Targets
from plait.router.sources import source_of

FLAGS = {"prefill": [PrefillTarget("http://p:1", 8998)], "decode": ["http://d:1"]}


async def first(source: Source) -> Targets:
    """The first list."""
    got: asyncio.Future[Targets] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(source.watch(lambda targets: got.done() or got.set_result(targets)))
    try:
        return await asyncio.wait_for(got, 5)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_flags() -> None:
    source = source_of(RouterConfig(**FLAGS))  # type: ignore[arg-type]
    assert source.kind == "flags"
    assert not source.synced
    assert await first(source) == (
        Target.prefill("http://p:1", bootstrap_port=8998),
        Target.decode("http://d:1"),
    )
    assert source.synced


async def test_file(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(
        "workers:\n  prefill: [{url: 'http://p:1', bootstrapPort: 8998}]\n  decode: [{url: 'http://d:1'}]\n"
    )
    source = source_of(RouterConfig(workers_file=str(file)))
    assert source.kind == "file"
    assert [t.url for t in await first(source)] == ["http://p:1", "http://d:1"]


def test_kubernetes_needs_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="kubernetes"):
        source_of(RouterConfig(kubernetes=KubernetesSettings()))


def test_only_what_is_chosen_is_loaded() -> None:
    """Memory counts: YAML and the Kubernetes client are nobody's who names workers by flags."""
    code = (
        "import sys\n"
        "from plait.router.config import RouterConfig, PrefillTarget\n"
        "from plait.router.sources import source_of\n"
        "source_of(RouterConfig(prefill=[PrefillTarget('http://p:1', 1)], decode=['http://d:1']))\n"
        "print([m for m in ('yaml', 'aiohttp', 'cryptography', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
