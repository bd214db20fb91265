"""The webhook's certificate, which is replaced while connections are open.

The server keeps one SSLContext for its life, which holds nothing and hands each new connection to the context
of the newest files. Open connections stay with the one that they began with.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from plait_operator.admission.certificates import CERTIFICATE, KEY

log = logging.getLogger("plait.admission")

_MOST_BYTES = 1 << 20


class _Files(NamedTuple):
    certificate: bytes
    key: bytes


class ServingCertificate:
    """`tls.crt` and `tls.key` of a folder, which may be empty at first. For one thread.

    `context`: what a server is given. `not_after`: when the certificate in force runs out, in seconds since
    1970; None while there is none. `fault`: why the newest files are not in force, '' where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: _Files | None = None
        self._inner: ssl.SSLContext | None = None
        self.not_after: float | None = None
        self.fault = "not looked yet"
        self.context = _context()
        self.context.sni_callback = self._choose

    def poll(self) -> bool:
        """Look at the files; whether new connections get something new. Never raises."""
        try:
            files = _Files(self._read(CERTIFICATE), self._read(KEY))
            if files == self._seen:
                return False
            inner, not_after = self._load(files)
        except (OSError, ValueError) as error:
            self._tell(str(error))
            return False
        self._seen, self._inner, self.not_after, self.fault = files, inner, not_after, ""
        return True

    def _tell(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            held = "the certificate from before stays in force: " if self._inner else ""
            log.warning("%s%s", held, fault)

    def _read(self, name: str) -> bytes:
        path = self._folder / name
        try:
            with path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise OSError(f"{path} cannot be read: {error.strerror}") from None
        if not content or len(content) > _MOST_BYTES:
            raise ValueError(f"{path} is {'empty' if not content else 'no PEM file: it is too long'}")
        return content

    def _load(self, files: _Files) -> tuple[ssl.SSLContext, float]:
        """A context of the files, and when the certificate runs out."""
        certificate, key = self._folder / CERTIFICATE, self._folder / KEY
        try:
            told = x509.load_pem_x509_certificates(files.certificate)[0]
            private = load_pem_private_key(files.key, None)
        except (ValueError, TypeError):
            # Not the library's words: they could hold some of the key.
            raise ValueError(
                f"{certificate}, {key}: no certificate and key in PEM that can be read"
            ) from None
        form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if private.public_key().public_bytes(*form) != told.public_key().public_bytes(*form):
            raise ValueError(f"{key} is not the key of {certificate}: they may be half replaced")
        context = _context()
        context.load_cert_chain(certificate, key)
        if _Files(self._read(CERTIFICATE), self._read(KEY)) != files:
            raise ValueError(f"{certificate} changed while it was read")
        return context, told.not_valid_after_utc.timestamp()

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """At each client's hello, with or without a server name in it: before any certificate is sent."""
        if self._inner is not None:
            connection.context = self._inner


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
