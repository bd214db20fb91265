"""What the Kubernetes source is told."""

from __future__ import annotations

import re
from dataclasses import dataclass

from plait.router.config import ConfigError
from plait.router.discovery.address import port
from plait.router.discovery.kubernetes.rules import PodRules
from plait.router.discovery.kubernetes.selector import INSTANCE_LABEL, Selector, common

_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """Which pods are workers, and how to ask for them. Raises ConfigError where one cannot work.

    `prefill`, `decode`: label selectors (`KEY=VALUE[,KEY=VALUE]…`) of the two sides; `instance`: only pods of
    this release (label `app.kubernetes.io/instance`), empty for all. `http_port_name`, `bootstrap_port_name`:
    names of the container ports; `http_port`, `bootstrap_port`: the ports of pods that name none (0: such a
    pod is skipped). `scheme`: how engines are spoken to.

    `namespace`, `server`, `token_file`, `ca_file`: empty for those of the pod's own service account.

    In seconds: `resync`: a whole list about this often, which heals whatever a watch has lost; `watch`: how
    long the API server is asked to keep a watch, give or take a quarter; `margin`: how much longer it may
    take before the watch counts as dead; `timeout`: one list, or the start of a watch.
    """

    prefill: str = "plait.dev/role=prefill"
    decode: str = "plait.dev/role=decode"
    instance: str = ""
    http_port_name: str = "http"
    bootstrap_port_name: str = "bootstrap"
    http_port: int = 0
    bootstrap_port: int = 0
    scheme: str = "http"
    namespace: str = ""
    server: str = ""
    token_file: str = ""
    ca_file: str = ""
    resync: float = 300.0
    watch: float = 60.0
    margin: float = 10.0
    timeout: float = 15.0

    def __post_init__(self) -> None:
        for name in ("http_port", "bootstrap_port"):
            if getattr(self, name):
                port(f"kubernetes {name}", getattr(self, name))
        for name in ("http_port_name", "bootstrap_port_name"):
            if not getattr(self, name):
                raise ConfigError(f"kubernetes {name}", "", "give the name of a container port")
        if self.scheme not in ("http", "https"):
            raise ConfigError("kubernetes scheme", self.scheme, "write http or https")
        if self.namespace and not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigError("kubernetes namespace", self.namespace, "give the name of one namespace")
        for name in ("resync", "watch", "margin", "timeout"):
            if not 0 < getattr(self, name) <= 86_400:
                raise ConfigError(
                    f"kubernetes {name}", getattr(self, name), "give seconds between 0 and a day"
                )
        self.label_selector()

    def rules(self) -> PodRules:
        """The part of the settings that judges one pod."""
        prefill, decode = self._selectors()
        return PodRules(
            prefill=prefill,
            decode=decode,
            http_port_name=self.http_port_name,
            bootstrap_port_name=self.bootstrap_port_name,
            http_port=self.http_port,
            bootstrap_port=self.bootstrap_port,
            scheme=self.scheme,
        )

    def label_selector(self) -> str:
        """One selector that both sides' pods match, so that one watch sees them all."""
        return common(*self._selectors())

    def _selectors(self) -> tuple[Selector, Selector]:
        more = f",{INSTANCE_LABEL}={self.instance}" if self.instance else ""
        return (
            Selector.parse("kubernetes prefill", self.prefill + more),
            Selector.parse("kubernetes decode", self.decode + more),
        )
