"""TLS towards clients: a certificate that may be replaced while connections are open.

A server keeps one SSLContext for its life. Loading a new certificate into it is not enough: one of another
kind (RSA, then ECDSA) would be added beside the old one, and a client authority can be added but not taken
out. So that context holds nothing, and hands each new connection to the context of the newest files; open
connections stay with the one that they began with.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from plait.router.config import ConfigError
from plait.router.watched import Watch, read_file

log = logging.getLogger("plait.router.tls")

ALPN = ("http/1.1",)

_CERTIFICATE = "tls_certificate"
_KEY = "tls_key"
_CLIENT_CA = "tls_client_ca"
_MAX_FILE = 1 << 20


class _Loaded(NamedTuple):
    """One version of the files."""

    context: ssl.SSLContext
    not_before: float
    not_after: float


class Certificate:
    """A server's certificate (with its chain) and key, both PEM, from files that are watched.

    TLS 1.2 and 1.3. `client_ca`: a file of authorities; then only clients with a certificate of theirs get
    in, by TLS 1.3. Raises ConfigError where the files cannot be used at the start. `clock` gives seconds
    since 1970.

    `context` is what the server is given: the same object for good, whatever the files become.
    """

    def __init__(
        self,
        certificate: str | Path,
        key: str | Path,
        *,
        client_ca: str | Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._certificate, self._key = Path(certificate), Path(key)
        self._client_ca = None if client_ca is None else Path(client_ca)
        self._watch = Watch([p for p in (self._certificate, self._key, self._client_ca) if p is not None])
        self._clock = clock
        self._watch.changed()
        self._loaded = self._load()
        self._told_invalid = False
        self.fault = ""
        """Why the newest files are not in force (the ones before them are); empty where they are."""
        self.context = _server_context(client_certificates=client_ca is not None)
        self.context.sni_callback = self._choose
        self._tell_validity()

    @property
    def not_after(self) -> float:
        """When the certificate in force runs out, in seconds since 1970."""
        return self._loaded.not_after

    def poll(self) -> bool:
        """Take up files that have changed; whether new connections get something new. Call it every 0.5 s.

        Files that cannot be used leave all as it is; the log says so once for each such version. So it does
        when the certificate in force runs out.
        """
        if not self._watch.changed():
            self._tell_validity()
            return False
        try:
            loaded = self._load()
        except ConfigError as error:
            # Certificate and key may be from before and after a change: the next poll reads both again.
            if self._watch.still() and str(error) != self.fault:
                self.fault = str(error)
                log.error("new connections keep the TLS certificate from before: %s", error)
            return False
        if not self._watch.still():
            return False
        self.fault = ""
        self._loaded = loaded
        self._told_invalid = False
        log.info("TLS certificate read again; it is valid until %s", _date(loaded.not_after))
        self._tell_validity()
        return True

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """At each client's hello, with or without a server name in it: before any certificate is sent."""
        connection.context = self._loaded.context

    def _load(self) -> _Loaded:
        """A context of the files as they are now. Raises ConfigError."""
        certificate, key = _read(_CERTIFICATE, self._certificate), _read(_KEY, self._key)
        not_before, not_after = _checked(certificate, self._certificate, key, self._key)
        context = _server_context(client_certificates=self._client_ca is not None)
        # What was checked is what is loaded: `load_cert_chain` takes paths only, and would read again.
        with _as_path(certificate) as certificate_path, _as_path(key) as key_path:
            try:
                context.load_cert_chain(certificate_path, key_path, password=_no_password)
            except ssl.SSLError as error:
                raise ConfigError(
                    _CERTIFICATE, str(self._certificate), f"OpenSSL refuses it or its key ({error.reason})"
                ) from error
        if self._client_ca is not None:
            trust_only(context, _CLIENT_CA, self._client_ca)
        return _Loaded(context, not_before, not_after)

    def _tell_validity(self) -> None:
        now = self._clock()
        if self._told_invalid or self._loaded.not_before <= now < self._loaded.not_after:
            return
        self._told_invalid = True
        early = now < self._loaded.not_before
        log.warning(
            "%s: clients will refuse this certificate, which %s %s",
            self._certificate,
            "is not valid before" if early else "ran out at",
            _date(self._loaded.not_before if early else self._loaded.not_after),
        )


def trust_only(context: ssl.SSLContext, field: str, path: Path) -> None:
    """Let `context` trust the authorities in the PEM file `path`. Raises ConfigError that names `field`."""
    content = _read(field, path)
    try:
        context.load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else "it is empty or not ASCII"
        raise ConfigError(
            field, str(path), f"holds no certificates that can be read ({reason}): give them as PEM"
        ) from error


def _server_context(*, client_certificates: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(ALPN)
    if client_certificates:
        context.verify_mode = ssl.CERT_REQUIRED
        # A session taken up again is not asked for its certificate, though its authority may be out by then.
        # Without tickets TLS 1.3 has no such sessions; those of 1.2 cannot be turned off from here.
        context.num_tickets = 0
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _read(field: str, path: Path) -> bytes:
    try:
        return read_file(path, limit=_MAX_FILE)
    except OSError as error:
        raise ConfigError(field, str(path), f"cannot be read ({error.strerror}): give a PEM file") from error


def _checked(certificate: bytes, certificate_path: Path, key: bytes, key_path: Path) -> tuple[float, float]:
    """From when until when the certificate is valid. Raises ConfigError where it or its key is of no use."""
    # 12 MB of memory, which only those who use TLS pay.
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )

    try:
        own = x509.load_pem_x509_certificates(certificate)[0]
        public = own.public_key()
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise ConfigError(
            _CERTIFICATE,
            str(certificate_path),
            "holds no certificate that can be read: give PEM, the server's own certificate first, its chain "
            "after it",
        ) from error
    try:
        private = load_pem_private_key(key, None)
    except TypeError as error:
        raise ConfigError(
            _KEY, str(key_path), "is encrypted: give a key without a passphrase (openssl pkey -in … -out …)"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        # Not the library's words: they could hold some of the key.
        raise ConfigError(
            _KEY, str(key_path), "holds no private key that can be read: give it as PEM"
        ) from error
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != public.public_bytes(*form):
        raise ConfigError(
            _KEY,
            str(key_path),
            f"does not belong to the first certificate in {certificate_path}: give the key that it was made "
            "for, or put the server's own certificate first",
        )
    return own.not_valid_before_utc.timestamp(), own.not_valid_after_utc.timestamp()


def _no_password() -> str:
    """OpenSSL's own way is to ask on the terminal, and to wait."""
    raise ssl.SSLError("the key is encrypted")


@contextlib.contextmanager
def _as_path(content: bytes) -> Iterator[str]:
    """`content` as a file in memory, for as long as the block runs: a private key is not put on a disk."""
    descriptor = os.memfd_create("plait-tls", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
