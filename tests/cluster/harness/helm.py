"""The real helm, on the cluster; its own files lie in the run folder, never in the caller's home."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.harness import network
from tests.cluster.harness.instance import Instance
from tests.cluster.harness.kubectl import CommandError


class Helm:
    """`helm("install", "plait", "charts/plait", "-n", "x")`: standard output, or CommandError."""

    def __init__(self, instance: Instance, binaries: Path) -> None:
        self._home = instance.run / "helm"
        self._words = [*network.inside(instance), str(binaries / "helm")]
        self._kubeconfig = instance.kubeconfig()

    def __call__(self, *words: str, values: Mapping[str, Any] | None = None, seconds: float = 300.0) -> str:
        """`values`: handed over as a values file."""
        command = [*self._words, *words, *(["--values", "-"] if values is not None else [])]
        folders = {
            f"HELM_{kind}_HOME": str(self._home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")
        }
        done = subprocess.run(
            command,
            input=yaml.safe_dump(dict(values)) if values is not None else "",
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self._home),
                "KUBECONFIG": str(self._kubeconfig),
                **folders,
            },
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        if done.returncode:
            raise CommandError(command, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def releases(self, namespace: str) -> list[dict[str, Any]]:
        """What `helm list` shows."""
        return json.loads(self("list", "-n", namespace, "-o", "json"))  # type: ignore[no-any-return]
