"""The programs of the cluster, built from Go modules into a cache outside the work tree.

The cache key is the Go version and the files that decide the build, so a change of either builds anew.
Cold, that takes ten minutes and 900 CPU-seconds on two cores; found, it takes none.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.cluster.harness.failure import ClusterError
from tests.cluster.harness.host import locked

SOURCES: Final = Path(__file__).parent.parent / "programs"
PROGRAMS: Final = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "kube-proxy",
    "helm",
    "kwok",
    "coredns",
    "pause",
)
_KUBE: Final = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "kube-proxy",
)
_DONE: Final = "complete"


def cache() -> Path:
    """Folder of all builds: PLAIT_CLUSTER_CACHE, or /var/cache/plait-cluster."""
    return Path(os.environ.get("PLAIT_CLUSTER_CACHE") or "/var/cache/plait-cluster")


def key() -> str:
    """16 hex digits over the Go version, the module files and sources, and this file."""
    digest = hashlib.sha256(_go(SOURCES / "kube", "env", "GOVERSION").encode())
    for path in sorted([*SOURCES.rglob("go.*"), *SOURCES.rglob("*.go"), Path(__file__)]):
        digest.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def folder() -> Path:
    """The folder of PROGRAMS, built first where it is not there. ClusterError when the build fails."""
    if shutil.which("go") is None:
        raise ClusterError(
            "go is not on PATH: the cluster's programs are built with it; fix: install Go 1.26.8"
        )
    found = cache() / key()
    if (found / _DONE).exists():
        return found
    with locked(cache() / "build.lock", wait=True):
        if not (found / _DONE).exists():
            _build(found)
    return found


def _build(found: Path) -> None:
    part = found.with_name(f"{found.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    print(
        f"cluster: building the control plane into {found} (about 10 minutes, once)",
        file=sys.stderr,
        flush=True,
    )
    _kube(part)
    _compile(SOURCES / "coredns", part / "coredns", ".")
    version = f"-X sigs.k8s.io/kwok/pkg/consts.Version={_version(SOURCES / 'kwok', 'sigs.k8s.io/kwok')}"
    _compile(SOURCES / "kwok", part / "kwok", "sigs.k8s.io/kwok/cmd/kwok", flags=version)
    _compile(SOURCES / "pause", part / "pause", ".")
    if missing := [name for name in PROGRAMS if not os.access(part / name, os.X_OK)]:
        raise ClusterError(f"{part}: built without {', '.join(missing)}")
    (part / _DONE).touch()
    shutil.rmtree(found, ignore_errors=True)
    part.rename(found)


def _kube(part: Path) -> None:
    source = SOURCES / "kube"
    version = _version(source, "k8s.io/kubernetes")
    major, minor, _ = version.lstrip("v").split(".", 2)
    # Unset, the server calls itself v0.0.0-master, and clients that compare versions go wrong.
    told = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitCommit": "0" * 40,
        "gitTreeState": "archive",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    flags = [f"-X {package}.{name}={value}" for package in packages for name, value in told.items()]
    flags.append(f"-X helm.sh/helm/v3/internal/version.version={_version(source, 'helm.sh/helm/v3')}")
    # What `helm template` takes the cluster for.
    chart = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"
    flags.append(f"-X {chart}Major={major} -X {chart}Minor={minor}")
    commands = [f"k8s.io/kubernetes/cmd/{name}" for name in _KUBE]
    # One call: the packages they share are compiled once.
    _compile(
        source,
        part,
        *commands,
        "go.etcd.io/etcd/server/v3",
        "helm.sh/helm/v3/cmd/helm",
        flags=" ".join(flags),
    )
    (part / "server").rename(part / "etcd")


def _compile(source: Path, out: Path, *packages: str, flags: str = "") -> None:
    target = f"{out}/" if out.is_dir() else str(out)
    _go(source, "build", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", target, *packages)


def _version(source: Path, module: str) -> str:
    form = "{{if .Replace}}{{.Replace.Version}}{{else}}{{.Version}}{{end}}"
    return _go(source, "list", "-m", "-f", form, module)


def _go(source: Path, *words: str) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=readonly"}
    done = subprocess.run(["go", *words], cwd=source, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"go {words[0]} in {source}:\n{done.stderr.strip()[-4000:]}")
    return done.stdout.strip()
