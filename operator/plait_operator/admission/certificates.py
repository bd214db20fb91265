"""The webhook's own authority and certificate: made, renewed, and never out of step with the CA bundle.

Pure functions of the Secret's data and the time. Whoever runs them (the operator's leader) writes the data
they give first, then patches the bundle of both webhook configurations.

Pods see a new Secret up to some minutes later, and API servers a new bundle some seconds later. So an
authority changes in three steps, each at least SETTLE after the one before: the next one joins the bundle;
certificates are issued by it while the one before stays in the bundle; the one before leaves.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"
AUTHORITY_KEY: Final = "ca.key"
NEXT: Final = "next-ca.crt"
NEXT_KEY: Final = "next-ca.key"
BEFORE: Final = "old-ca.crt"
"""Keys of the Secret. A pod that serves needs the first two only."""

LIFE: Final = timedelta(days=90)
RENEW: Final = timedelta(days=30)
"""A certificate with less than this left is renewed."""
AUTHORITY_LIFE: Final = timedelta(days=3650)
AUTHORITY_RENEW: Final = timedelta(days=365)
SETTLE: Final = timedelta(hours=1)
"""How long after a step everyone has seen it."""
_EARLY: Final = timedelta(hours=1)
"""Certificates are valid from so long before they were made: clocks differ."""


class NewCertificate(NamedTuple):
    """What has to be written. `data`: the Secret's whole `data` (base64). `bundle`: PEM, for `caBundle`."""

    data: dict[str, str]
    bundle: bytes
    why: str


class _Pair(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class _State(NamedTuple):
    """What the Secret holds that can be used."""

    serving: _Pair | None
    authority: _Pair | None
    next: _Pair | None
    before: x509.Certificate | None


def names_of(service: str, namespace: str) -> tuple[str, ...]:
    """Names by which the API server calls a Service's webhook."""
    return f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local"


def bundle_of(secret_data: Mapping[str, str] | None) -> bytes:
    """The CA bundle (PEM) that goes with a Secret's `data`; empty where it holds no authority."""
    return _bundle(_read(secret_data or {}))


def ensure(
    secret_data: Mapping[str, str] | None, *, dns_names: Sequence[str], now: datetime
) -> NewCertificate | None:
    """What to write so that the webhook has a valid certificate for `dns_names`; None where all is well.

    `secret_data`: the Secret's `data` (base64), None or {} where there is none. What cannot be read in it is
    made anew. Call it every few minutes: steps follow each other in time. `now` needs a time zone.
    """
    now = now.astimezone(UTC)
    state = _read(secret_data or {})
    authority = state.authority
    if authority is None or _left(authority.certificate, now) <= timedelta():
        # Nothing to hand over to in peace: what served until now goes on in the bundle all the same.
        before = authority.certificate if authority else state.before
        made = _new_authority(now)
        why = "there was no authority" if authority is None else "the authority ran out"
        return _written(_State(_issued(made, dns_names, now), made, None, before), why)
    if state.next is not None and now >= _made(state.next.certificate) + SETTLE:
        told = _State(_issued(state.next, dns_names, now), state.next, None, authority.certificate)
        return _written(told, "the next authority issues from now on")
    why = _unfit(state.serving, authority, dns_names, now)
    if why:
        return _written(state._replace(serving=_issued(authority, dns_names, now)), why)
    if state.next is None and _left(authority.certificate, now) < AUTHORITY_RENEW:
        return _written(state._replace(next=_new_authority(now)), "the next authority joins the bundle")
    if (
        state.before is not None
        and state.serving is not None
        and now >= _made(state.serving.certificate) + SETTLE
    ):
        return _written(state._replace(before=None), "the authority before leaves the bundle")
    return None


def _unfit(serving: _Pair | None, authority: _Pair, dns_names: Sequence[str], now: datetime) -> str:
    """Why a new certificate is due; '' where it is not."""
    if serving is None:
        return "there was no certificate"
    try:
        serving.certificate.verify_directly_issued_by(authority.certificate)
    except Exception:  # of several kinds, and all mean the same here
        return "the certificate was of another authority"
    names = serving.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if set(names.get_values_for_type(x509.DNSName)) != set(dns_names):
        return "the certificate was for other names"
    if _left(serving.certificate, now) < RENEW:
        return "the certificate ran out soon"
    if serving.certificate.not_valid_before_utc > now:
        return "the certificate was not valid yet"
    return ""


def _made(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_before_utc + _EARLY


def _left(certificate: x509.Certificate, now: datetime) -> timedelta:
    return certificate.not_valid_after_utc - now


def _new_authority(now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own for each: with two of one name in a bundle, some verifiers try one of them only.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"plait-admission-{now:%Y%m%d%H%M%S%f}")])
    subject = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(subject, critical=False)
        .sign(key, hashes.SHA256())
    )
    return _Pair(certificate, key)


def _issued(authority: _Pair, dns_names: Sequence[str], now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # A common name has 64 characters at most; the names that count stand in the extension.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "plait-admission")])
    names = x509.SubjectAlternativeName([x509.DNSName(each) for each in dns_names])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(min(now + LIFE, authority.certificate.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return _Pair(certificate, key)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _read(data: Mapping[str, str]) -> _State:
    return _State(
        serving=_pair(data, CERTIFICATE, KEY),
        authority=_pair(data, AUTHORITY, AUTHORITY_KEY),
        next=_pair(data, NEXT, NEXT_KEY),
        before=_certificate(data, BEFORE),
    )


def _pair(data: Mapping[str, str], certificate_name: str, key_name: str) -> _Pair | None:
    """Certificate and key, None where one is missing, unreadable, or of another pair."""
    certificate = _certificate(data, certificate_name)
    content = _decoded(data, key_name)
    if certificate is None or content is None:
        return None
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        return None
    return _Pair(certificate, key)


def _certificate(data: Mapping[str, str], name: str) -> x509.Certificate | None:
    content = _decoded(data, name)
    if content is None:
        return None
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        return None


def _decoded(data: Mapping[str, str], name: str) -> bytes | None:
    try:
        return base64.b64decode(data.get(name) or "", validate=True) or None
    except binascii.Error:
        return None


def _bundle(state: _State) -> bytes:
    known = [
        state.authority.certificate if state.authority else None,
        state.next.certificate if state.next else None,
        state.before,
    ]
    return b"".join(_pem(certificate) for certificate in known if certificate is not None)


def _written(state: _State, why: str) -> NewCertificate:
    data: dict[str, bytes] = {}
    for pair, certificate_name, key_name in (
        (state.serving, CERTIFICATE, KEY),
        (state.authority, AUTHORITY, AUTHORITY_KEY),
        (state.next, NEXT, NEXT_KEY),
    ):
        if pair is not None:
            data[certificate_name] = _pem(pair.certificate)
            data[key_name] = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    if state.before is not None:
        data[BEFORE] = _pem(state.before)
    told = {name: base64.b64encode(content).decode() for name, content in data.items()}
    return NewCertificate(told, _bundle(state), why)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
