"""Who the router is to the Kubernetes API server, and where that is."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from plait.router.config import ConfigError
from plait.router.discovery.address import engine_url, join
from plait.router.discovery.kubernetes.settings import KubernetesSettings

# What a header can carry (RFC 6750).
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Access(NamedTuple):
    """Address of the API server, and the files that open it. `token_file` None: no token is sent."""

    server: str
    namespace: str
    token_file: Path | None
    ca_file: Path | None

    def token(self) -> str:
        """The token as it is now: the kubelet renews the file long before the old one ends.

        Raises OSError, ConfigError; neither holds any of the token.
        """
        if self.token_file is None:
            return ""
        token = self.token_file.read_bytes().strip()
        if not _TOKEN.fullmatch(token):
            raise ConfigError("kubernetes token_file", str(self.token_file), "it must hold one token alone")
        return token.decode("ascii")

    def tls(self) -> ssl.SSLContext:
        """Trust in the cluster's CA (in the system's where no file is named). Raises OSError."""
        return ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)


def find_access(
    settings: KubernetesSettings,
    *,
    environ: Mapping[str, str] = os.environ,
    account: Path = ACCOUNT_FOLDER,
) -> Access:
    """What the settings say, and for the rest the pod's own service account. Raises ConfigError."""
    return Access(
        server=_server(settings, environ),
        namespace=settings.namespace or _namespace(account / "namespace"),
        token_file=_token_file(settings, account),
        ca_file=_ca_file(settings, account),
    )


def _server(settings: KubernetesSettings, environ: Mapping[str, str]) -> str:
    if settings.server:
        return engine_url("kubernetes server", settings.server)
    host, port = (environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    if not host or not port:
        raise ConfigError(
            "kubernetes server",
            "",
            "KUBERNETES_SERVICE_HOST and _PORT are not set, so this is no pod: name the API server",
        )
    return engine_url("KUBERNETES_SERVICE_HOST, _PORT", join("https", host, None) + f":{port}")


def _namespace(file: Path) -> str:
    try:
        namespace = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(
            "kubernetes namespace", "", f"{file} cannot be read ({error.strerror}): name the namespace"
        ) from None
    if not namespace:
        raise ConfigError("kubernetes namespace", "", f"{file} is empty: name the namespace")
    return namespace


def _token_file(settings: KubernetesSettings, account: Path) -> Path | None:
    if not settings.token_file:
        # An explicit server is not shown the account's token: it was not made for it.
        return None if settings.server else _readable("kubernetes token_file", account / "token")
    host = urlsplit(settings.server).hostname or ""
    if settings.server.startswith("http:") and not _is_loopback(host):
        raise ConfigError(
            "kubernetes server", settings.server, "use https: the token would cross the network in the clear"
        )
    return _readable("kubernetes token_file", Path(settings.token_file))


def _ca_file(settings: KubernetesSettings, account: Path) -> Path | None:
    if settings.ca_file:
        return _readable("kubernetes ca_file", Path(settings.ca_file))
    return None if settings.server else _readable("kubernetes ca_file", account / "ca.crt")


def _readable(field: str, file: Path) -> Path:
    try:
        file.read_bytes()
    except OSError as error:
        raise ConfigError(
            field,
            str(file),
            f"it cannot be read ({error.strerror}): mount the service account, or name a file",
        ) from None
    return file


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
