"""The cluster's own authority, and a certificate and kubeconfig for each that talks to the API server."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.cluster.harness.instance import API, KUBERNETES_SERVICE, NODE, NODE_IP, Instance

_LIFE: Final = datetime.timedelta(days=30)
SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH

USERS: Final = {
    "admin": ("system:masters", "admin"),
    "controller-manager": ("", "system:kube-controller-manager"),
    "scheduler": ("", "system:kube-scheduler"),
    "proxy": ("", "system:kube-proxy"),
}
"""Name of the kubeconfig: group and user in the certificate."""


@dataclass(frozen=True)
class Authority:
    """Signs certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, name: str) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = _builder(subject, subject, key).add_extension(
            x509.BasicConstraints(True, None), critical=True
        )
        return cls(builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()), key)

    def issue(
        self,
        user: str,
        *,
        group: str = "",
        usages: Sequence[x509.ObjectIdentifier],
        names: Sequence[str] = (),
    ) -> tuple[bytes, bytes]:
        """Certificate and key as PEM. `names`: host names and addresses that it serves under."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        builder = _builder(subject, self.certificate.subject, key)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_name(n) for n in names]), critical=False
            )
        return pem(builder.sign(self.key, hashes.SHA256())), _pem_key(key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _LIFE)
    )


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def pem(certificate: x509.Certificate) -> bytes:
    """As a file holds it."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def write(instance: Instance) -> None:
    """Everything into the run folder: pki/{ca,apiserver,…}.{crt,key}, kubeconfig/{admin,…}."""
    folder = instance.certificates
    folder.mkdir(parents=True, exist_ok=True)
    cluster, front = Authority.new("plait-test-cluster"), Authority.new("plait-test-front-proxy")
    service = "kubernetes.default.svc"
    served = ["localhost", "kubernetes", "kubernetes.default", service, f"{service}.cluster.local"]
    issued = {
        "ca": (pem(cluster.certificate), _pem_key(cluster.key)),
        "front-ca": (pem(front.certificate), _pem_key(front.key)),
        "apiserver": cluster.issue(
            "kube-apiserver", usages=[SERVER], names=[*served, "127.0.0.1", KUBERNETES_SERVICE, NODE_IP]
        ),
        "apiserver-kubelet": cluster.issue("apiserver-kubelet", group="system:masters", usages=[CLIENT]),
        "front": front.issue("front-proxy-client", usages=[CLIENT]),
        "kubelet": cluster.issue(
            f"system:node:{NODE}", group="system:nodes", usages=[CLIENT, SERVER], names=[NODE, NODE_IP]
        ),
    }
    for name, (group, user) in USERS.items():
        issued[name] = cluster.issue(user, group=group, usages=[CLIENT])
    for name, (certificate, private) in issued.items():
        (folder / f"{name}.crt").write_bytes(certificate)
        _private(folder / f"{name}.key", private)
    signer = ec.generate_private_key(ec.SECP256R1())
    _private(folder / "sa.key", _pem_key(signer))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    (folder / "sa.pub").write_bytes(signer.public_key().public_bytes(serialization.Encoding.PEM, public))
    for name in (*USERS, "kubelet"):
        user_files = {"client-certificate": folder / f"{name}.crt", "client-key": folder / f"{name}.key"}
        write_kubeconfig(
            instance.kubeconfig(name), instance, {key: str(path) for key, path in user_files.items()}
        )


def write_kubeconfig(path: Path, instance: Instance, user: dict[str, str]) -> None:
    """A kubeconfig of the cluster; `user`: client-certificate and client-key, or token."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cluster = {"server": API, "certificate-authority": str(instance.certificates / "ca.crt")}
    _private(
        path,
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "tests", "cluster": cluster}],
                "users": [{"name": "user", "user": user}],
                "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "user"}}],
                "current-context": "tests",
            }
        ).encode(),
    )


def _private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
