"""kubectl of the cluster: for what a person would type. `api.Api` is faster for what a test does often."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.harness import network
from tests.cluster.harness.instance import Instance


class CommandError(RuntimeError):
    """A command ended with another code than 0. `output` is what it printed, both streams."""

    def __init__(self, words: Sequence[str], code: int, output: str) -> None:
        super().__init__(f"{' '.join(words)[:300]} ended with {code}:\n{output.strip()[-4000:]}")
        self.code = code
        self.output = output


def run(words: Sequence[str], *, given: str = "", seconds: float = 120.0) -> str:
    """Standard output of a command that reads `given`. CommandError, subprocess.TimeoutExpired."""
    done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        raise CommandError(words, done.returncode, done.stdout + done.stderr)
    return done.stdout


class Kubectl:
    """`kubectl("get", "pods", "-n", "x")`: standard output, or CommandError with what it said."""

    def __init__(self, instance: Instance, binaries: Path, *, user: str = "admin") -> None:
        program = str(binaries / "kubectl")
        self.command = [*network.inside(instance), program, "--kubeconfig", str(instance.kubeconfig(user))]

    def __call__(self, *words: str, given: str = "", seconds: float = 120.0) -> str:
        return run([*self.command, *words], given=given, seconds=seconds)

    def json(self, *words: str) -> Any:
        """The answer of `get … -o json`."""
        return json.loads(self(*words, "-o", "json"))

    def apply(self, *manifests: dict[str, Any], namespace: str = "") -> str:
        """Apply manifests, server-side."""
        words = ["apply", "--server-side", "--force-conflicts", "-f", "-"]
        return self(*words, *(["-n", namespace] if namespace else []), given=yaml.safe_dump_all(manifests))

    def can_i(self, verb: str, resource: str, *, account: str, namespace: str, subresource: str = "") -> bool:
        """Whether a ServiceAccount (`namespace:name`) may. `resource`: a kind, or `kind/name` of one object.

        `namespace`: `*` asks for all of them. A subresource in `resource` would be taken for a name.
        """
        words = ["auth", "can-i", verb, resource, "--as", f"system:serviceaccount:{account}"]
        words += ["--all-namespaces"] if namespace == "*" else ["-n", namespace]
        words += [f"--subresource={subresource}"] if subresource else []
        try:
            return self(*words).strip() == "yes"
        except CommandError as refused:
            # "no" is code 1 with that word alone or before a reason; else the question was at fault.
            if refused.output.strip().splitlines()[-1:] == ["no"] or refused.output.startswith("no - "):
                return False
            raise
