"""Keeps the webhook's certificate valid and its CA bundle in both webhook configurations: the leader's work.

Only where cert-manager does not do it. How certificates are made, and in which steps authorities follow each
other, is `admission.certificates`; it comes in as an `Issuer`, for this room stands beside that one.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from plait_operator.apply.client import Client, Request
from plait_operator.apply.errors import ApplyError, FencedError
from plait_operator.apply.kinds import SECRET, Kind
from plait_operator.names import MANAGER
from plait_operator.observed import Manifest

log = logging.getLogger("plait.operator.certificates")

EVERY_S: Final = 60.0
_ADMISSION: Final = "admissionregistration.k8s.io/v1"
CONFIGURATIONS: Final = (
    Kind(_ADMISSION, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
    Kind(_ADMISSION, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
)


class Written(Protocol):
    """What is to be written: the Secret's whole data, and the bundle that goes with it."""

    @property
    def data(self) -> dict[str, str]: ...
    @property
    def bundle(self) -> bytes: ...
    @property
    def why(self) -> str: ...


class Ensure(Protocol):
    """`admission.certificates.ensure`."""

    def __call__(
        self, secret_data: Mapping[str, str] | None, *, dns_names: Sequence[str], now: datetime
    ) -> Written | None: ...


@dataclass(frozen=True, kw_only=True)
class Issuer:
    """The pure part, and what it is used on. `configuration`: the name of both webhook configurations."""

    ensure: Ensure
    bundle_of: Callable[[Mapping[str, str] | None], bytes]
    namespace: str
    secret: str
    configuration: str
    dns_names: tuple[str, ...]


class Certificates:
    """Looks every minute, in a thread, from `start` to `stop`."""

    def __init__(self, client: Client, issuer: Issuer, *, every_s: float = EVERY_S) -> None:
        self._client = client
        self._issuer = issuer
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="certificates", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, *, timeout_s: float) -> None:
        """End."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def look(self, now: datetime) -> int:
        """Put right what is wrong; how many objects were written. Raises ApplyError."""
        issuer = self._issuer
        path = SECRET.path(issuer.namespace, issuer.secret)
        secret = self._client.read(path, kind=SECRET.kind)
        if secret is None:
            log.warning("Secret %s/%s is not there: install the chart's", issuer.namespace, issuer.secret)
            return 0
        written = 0
        data: Mapping[str, str] | None = secret.get("data")
        new = issuer.ensure(data, dns_names=issuer.dns_names, now=now)
        if new is not None:
            log.info("Secret %s/%s is written: %s", issuer.namespace, issuer.secret, new.why)
            # With its resource version: what another has written meanwhile is looked at first.
            body = secret | {"data": new.data}
            self._client.write(
                Request("PUT", path, SECRET.kind, "secret", (("fieldManager", MANAGER),), body=body)
            )
            written += 1
        bundle = base64.b64encode(issuer.bundle_of(data) if new is None else new.bundle).decode()
        return written + sum(self._bundle(kind, bundle) for kind in CONFIGURATIONS)

    def _bundle(self, kind: Kind, bundle: str) -> int:
        path = kind.path(name=self._issuer.configuration)
        found = self._client.read(path, kind=kind.kind)
        if found is None:
            log.warning("%s %s is not there: install the chart's", kind.kind, self._issuer.configuration)
            return 0
        steps = steps_of(found, bundle)
        if not steps:
            return 0
        query = (("fieldManager", MANAGER),)
        self._client.write(
            Request("PATCH", path, kind.kind, "bundle", query, "application/json-patch+json", steps)
        )
        return 1

    def _run(self) -> None:
        while True:
            try:
                self.look(self._client.now())
            except FencedError:
                return
            except ApplyError as error:
                log.warning("%s", error)
            except Exception:
                log.exception("certificates: this is a fault of the operator")
            if self._stop.wait(self._every_s):
                return


def steps_of(configuration: Manifest, bundle: str) -> list[Manifest]:
    """A JSON patch that gives every webhook this bundle (base64); empty: all have it. Pure.

    By patch with tests and not by apply: a webhook that was taken out meanwhile must not come back as a part.
    """
    steps: list[Manifest] = []
    for number, webhook in enumerate(configuration.get("webhooks") or ()):
        if webhook["clientConfig"].get("caBundle") == bundle:
            continue
        at = f"/webhooks/{number}"
        steps.append({"op": "test", "path": f"{at}/name", "value": webhook["name"]})
        steps.append({"op": "add", "path": f"{at}/clientConfig/caBundle", "value": bundle})
    return steps
