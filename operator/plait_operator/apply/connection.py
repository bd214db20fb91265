"""How to reach the API server: one configuration for the official client, the watches and kopf."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from kubernetes.client import Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config


class ConnectionConfigError(ValueError):
    """No usable configuration; the message says what to give."""


class Connection:
    """A server, and who we are there. `configuration` is the official client's."""

    def __init__(self, configuration: Any) -> None:
        self.configuration = configuration

    @classmethod
    def load(cls, kubeconfig: Path | None, *, pool: int = 16) -> Connection:
        """From a kubeconfig, or from the pod's service account. Raises ConnectionConfigError."""
        configuration = Configuration()
        try:
            if kubeconfig is None:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                if not kubeconfig.is_file():
                    raise ConnectionConfigError(f"--kubeconfig {kubeconfig}: there is no such file")
                load_kube_config(  # type: ignore[no-untyped-call]
                    str(kubeconfig), client_configuration=configuration
                )
        except ConfigException as error:
            hint = "run in a pod with a service account, or give --kubeconfig"
            where = "the pod's service account" if kubeconfig is None else f"--kubeconfig {kubeconfig}"
            raise ConnectionConfigError(f"{where}: {error}: {hint}") from None
        configuration.connection_pool_maxsize = pool
        # Attempts are ours to count: a hidden one would double a write's time.
        configuration.retries = False
        return cls(configuration)

    @property
    def server(self) -> str:
        """Its address, without a slash at the end."""
        return str(self.configuration.host).rstrip("/")

    def headers(self) -> dict[str, str]:
        """The credentials as a header; a service account's token is read again when it is due."""
        found = self.configuration.auth_settings().get("BearerToken")
        value = found and found["value"]
        return {"authorization": value} if value else {}

    def tls(self) -> ssl.SSLContext | bool:
        """For aiohttp. The files are read now; they may be renewed, so call it again after trouble."""
        if not self.server.startswith("https:"):
            return True
        told = self.configuration
        if told.verify_ssl:
            context = ssl.create_default_context(cafile=told.ssl_ca_cert or None)
        else:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if told.cert_file:
            context.load_cert_chain(told.cert_file, told.key_file)
        return context
