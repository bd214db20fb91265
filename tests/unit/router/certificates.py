"""Certificates made on the spot, and a real HTTPS server of uvicorn on uvloop to show them."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_HOUR = timedelta(hours=1)


class Made(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: PrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def locked_key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def make(
    name: str,
    *,
    signer: Made | None = None,
    authority: bool = False,
    key: PrivateKey | None = None,
    host: str = "localhost",
    address: str = "127.0.0.1",
    start: timedelta = -_HOUR,
    end: timedelta = _HOUR,
) -> Made:
    """A certificate of `name` for a host and an address, signed by `signer` (None: by itself)."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer.certificate.subject if signer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + start)
        .not_valid_after(now + end)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host), x509.IPAddress(ip_address(address))]),
            critical=False,
        )
    )
    return Made(builder.sign(signer.key if signer else key, hashes.SHA256()), key)


class Files:
    """A server's certificate and key as files that a test may replace."""

    def __init__(self, folder: Path, made: Made) -> None:
        self.certificate = folder / "tls.crt"
        self.key = folder / "tls.key"
        self.put(made)

    def put(self, made: Made) -> None:
        self.write(certificate=made.pem, key=made.key_pem)

    def write(self, *, certificate: bytes | None = None, key: bytes | None = None) -> None:
        for path, content in ((self.certificate, certificate), (self.key, key)):
            if content is not None:
                path.write_bytes(content)
                aged(path)


def aged(path: Path) -> Path:
    """As if written a second ago: what was touched just now is read at the poll after."""
    about = path.stat()
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns - 1_000_000_000))
    return path


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.contextmanager
def https_server(context: ssl.SSLContext) -> Iterator[int]:
    """The port of a server that answers everything with `ok`."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        config = uvicorn.Config(
            _app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            ssl_context_factory=lambda _config, _default: context,
        )
        server = uvicorn.Server(config)
        loop = uvloop.new_event_loop()

        def serve() -> None:
            loop.run_until_complete(server.serve(sockets=[sock]))
            loop.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield sock.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def client_context(*trusted: Made, own: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """A client that believes `trusted` (nobody given: anybody)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if trusted:
        context.load_verify_locations(cadata="".join(made.pem.decode() for made in trusted))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if own:
        context.load_cert_chain(*own)
    return context


class Client:
    """One connection that stays open."""

    def __init__(self, port: int, context: ssl.SSLContext, host: str = "localhost") -> None:
        self._http = HTTPSConnection(host, port, context=context, timeout=20)

    def __enter__(self) -> Client:
        self._http.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @property
    def _tls(self) -> ssl.SSLSocket:
        assert isinstance(self._http.sock, ssl.SSLSocket), "the connection was closed"
        return self._http.sock

    @property
    def server_name(self) -> str:
        """Common name in the certificate that the server showed."""
        shown = x509.load_der_x509_certificate(self._tls.getpeercert(binary_form=True) or b"")
        return str(shown.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)

    @property
    def protocol(self) -> tuple[str | None, str | None]:
        return self._tls.version(), self._tls.selected_alpn_protocol()

    def get(self) -> str:
        """One request on this connection, and no other."""
        connection = self._tls
        self._http.request("GET", "/")
        answer = self._http.getresponse().read().decode()
        assert self._http.sock is connection
        return answer


def handshake_fault(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Why `server` ends a handshake with `client` (uvloop hangs up without a word); empty: it does not."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(5):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                if end is ends[0]:
                    raise
                return error.reason
    return ""
