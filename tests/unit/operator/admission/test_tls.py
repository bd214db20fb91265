"""A certificate that changes under a server."""

import base64
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from plait_operator.admission.certificates import CERTIFICATE, KEY, NewCertificate, ensure
from plait_operator.admission.tls import ServingCertificate


def new() -> NewCertificate:
    told = ensure(None, dns_names=["localhost"], now=datetime.now(UTC))
    assert told is not None
    return told


def put(folder: Path, told: NewCertificate, *names: str) -> None:
    for name in names or (CERTIFICATE, KEY):
        (folder / name).write_bytes(base64.b64decode(told.data[name]))


class Echo:
    """A TLS server that echoes lines, one thread a connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._context = context
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(plain,), daemon=True).start()

    def _echo(self, plain: socket.socket) -> None:
        try:
            with self._context.wrap_socket(plain, server_side=True) as connection:
                while told := connection.recv(100):
                    connection.sendall(told)
        except OSError:
            plain.close()

    def close(self) -> None:
        self._listener.close()

    def connect(self, bundle: bytes, *, name: str | None = "localhost") -> ssl.SSLSocket:
        context = ssl.create_default_context(cadata=bundle.decode())
        context.check_hostname = name is not None
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        return context.wrap_socket(plain, server_hostname=name)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[ServingCertificate, Echo]]:
    certificate = ServingCertificate(tmp_path)
    server = Echo(certificate.context)
    yield certificate, server
    server.close()


def test_nothing_is_served_before_there_is_a_certificate(
    served: tuple[ServingCertificate, Echo], tmp_path: Path
) -> None:
    certificate, server = served
    assert not certificate.poll()
    assert "tls.crt cannot be read: No such file" in certificate.fault
    told = new()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        server.connect(told.bundle)
    put(tmp_path, told, CERTIFICATE)
    assert not certificate.poll()
    put(tmp_path, told)
    assert certificate.poll()
    assert certificate.fault == ""
    assert certificate.not_after is not None
    for name in ("localhost", None):
        server.connect(told.bundle, name=name).close()


def test_a_new_certificate_is_for_new_connections_and_open_ones_go_on(
    served: tuple[ServingCertificate, Echo], tmp_path: Path
) -> None:
    certificate, server = served
    one, two = new(), new()
    put(tmp_path, one)
    assert certificate.poll()
    assert not certificate.poll()
    with server.connect(one.bundle) as before:
        put(tmp_path, two)
        assert certificate.poll()
        with server.connect(two.bundle) as after:
            after.sendall(b"new")
            assert after.recv(10) == b"new"
        before.sendall(b"old")
        assert before.recv(10) == b"old"
    with pytest.raises(ssl.SSLCertVerificationError):
        server.connect(one.bundle)


def test_files_of_no_use_leave_the_one_in_force_and_are_told_once(
    served: tuple[ServingCertificate, Echo], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, server = served
    one, two = new(), new()
    put(tmp_path, one)
    assert certificate.poll()
    put(tmp_path, two, KEY)
    with caplog.at_level(logging.WARNING, logger="plait.admission"):
        assert not certificate.poll()
        assert not certificate.poll()
    [told] = [record.getMessage() for record in caplog.records]
    assert "stays in force" in told
    assert "is not the key of" in told
    server.connect(one.bundle).close()
    put(tmp_path, two)
    assert certificate.poll()


@pytest.mark.parametrize("content", [b"", b"no PEM at all", b"x" * (2 << 20)])
def test_a_key_of_no_use_is_not_told_in_words(tmp_path: Path, content: bytes) -> None:
    certificate = ServingCertificate(tmp_path)
    put(tmp_path, new())
    (tmp_path / KEY).write_bytes(content)
    assert not certificate.poll()
    assert "tls.key" in certificate.fault
    assert "no PEM at all" not in certificate.fault
