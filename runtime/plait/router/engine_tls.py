"""TLS towards engines: whom the router trusts to be one."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from plait.router.config import ConfigError
from plait.router.tls import ALPN, trust_only
from plait.router.watched import Watch

log = logging.getLogger("plait.router.tls")

_FIELD = "engine_ca"


class EngineTrust:
    """How the router checks the engines that it reaches by https.

    `ca`: a PEM file of the authorities that count, and no others; None: the system's. `insecure`: nothing is
    checked, which lets anyone on the way read prompts and the engines' key; it has to be asked for, and is
    refused beside `ca`. Raises ConfigError.

    `context` is for the next connection; `poll` replaces it, so ask for it at each connect. The name that is
    checked is the one in the engine's URL: for a pod's address the certificate needs that IP as a name.
    """

    def __init__(self, *, ca: str | Path | None = None, insecure: bool = False) -> None:
        if ca is not None and insecure:
            raise ConfigError(_FIELD, str(ca), "give it without the insecure option, which checks nothing")
        self._ca = None if ca is None else Path(ca)
        self._watch = Watch([] if self._ca is None else [self._ca])
        self._insecure = insecure
        if insecure:
            log.warning("the certificates of engines are NOT checked: whoever is on the way can read all")
        self._watch.changed()
        self.context = self._load()
        self.fault = ""
        """Why the newest file is not in force (the one before it is); empty where it is."""

    def poll(self) -> bool:
        """Take up a file of authorities that has changed; whether `context` is new. Call it every 0.5 s.

        One that cannot be used leaves all as it is; the log says so once for each such version.
        """
        if self._ca is None or not self._watch.changed():
            return False
        try:
            context = self._load()
        except ConfigError as error:
            if self._watch.still() and str(error) != self.fault:
                self.fault = str(error)
                log.error("connections to engines keep the authorities from before: %s", error)
            return False
        if not self._watch.still():
            return False
        self.fault = ""
        self.context = context
        log.info("authorities for engines read again")
        return True

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(ALPN)
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self._ca is not None:
            trust_only(context, _FIELD, self._ca)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return context
