"""TLS towards clients, shown by a real server whose files change under it."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.unit.router.certificates import (
    Client,
    Files,
    Made,
    aged,
    client_context,
    handshake_fault,
    https_server,
    make,
    rsa_key,
)

from plait.router.config import ConfigError
from plait.router.tls import Certificate

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def old() -> Made:
    return make("old")


@pytest.fixture(scope="module")
def new() -> Made:
    return make("new")


@pytest.fixture
def files(tmp_path: Path, old: Made) -> Files:
    return Files(tmp_path, old)


def certificate_of(files: Files, **more: object) -> Certificate:
    return Certificate(files.certificate, files.key, **more)  # type: ignore[arg-type]


def test_open_connections_live_on_and_new_ones_get_the_new_certificate(
    files: Files, old: Made, new: Made
) -> None:
    certificate = certificate_of(files)
    context = client_context(old, new)
    with https_server(certificate.context) as port, Client(port, context) as first:
        assert (first.server_name, first.get()) == ("old", "ok")
        assert first.protocol == ("TLSv1.3", "http/1.1")
        files.put(new)
        assert certificate.poll()
        assert not certificate.poll()
        with Client(port, context) as second:
            assert (second.server_name, second.get()) == ("new", "ok")
            assert (first.server_name, first.get()) == ("old", "ok")
        with Client(port, context, host="127.0.0.1") as nameless:
            assert nameless.server_name == "new", "a client that sends no server name gets it too"


def test_a_certificate_of_another_kind_leaves_nothing_of_the_old_one(tmp_path: Path, new: Made) -> None:
    files = Files(tmp_path, make("rsa", key=rsa_key()))
    certificate = certificate_of(files)
    rsa_first = client_context()
    rsa_first.maximum_version = ssl.TLSVersion.TLSv1_2
    rsa_first.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256")
    with https_server(certificate.context) as port:
        with Client(port, rsa_first) as client:
            assert (client.server_name, client.protocol[0]) == ("rsa", "TLSv1.2")
        files.put(new)
        assert certificate.poll()
        with Client(port, rsa_first) as client:
            assert (client.server_name, client.get()) == ("new", "ok")


def test_the_chain_is_sent_with_the_certificate(tmp_path: Path) -> None:
    root = make("root", authority=True)
    middle = make("middle", signer=root, authority=True)
    leaf = make("leaf", signer=middle)
    files = Files(tmp_path, leaf)
    files.write(certificate=leaf.pem + middle.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=root.pem.decode())
    with https_server(certificate_of(files).context) as port, Client(port, context) as client:
        assert (client.server_name, client.get()) == ("leaf", "ok")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_before_1_2_is_refused(files: Files) -> None:
    ancient = client_context()
    ancient.minimum_version = ssl.TLSVersion.TLSv1
    ancient.maximum_version = ssl.TLSVersion.TLSv1_1
    ancient.set_ciphers("ALL:@SECLEVEL=0")
    assert handshake_fault(certificate_of(files).context, ancient) == "UNSUPPORTED_PROTOCOL"
    ancient.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake_fault(certificate_of(files).context, ancient) == ""


@pytest.mark.parametrize("how", ["no match", "cut off", "gone", "locked"])
def test_bad_new_files_keep_the_certificate_and_are_told_once(
    files: Files, old: Made, new: Made, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    certificate = certificate_of(files)
    caplog.set_level(logging.INFO)
    if how == "no match":
        files.write(certificate=new.pem)
    elif how == "cut off":
        files.write(certificate=old.pem[:300])
    elif how == "locked":
        files.write(key=old.locked_key_pem)
    else:
        files.key.unlink()
    assert [certificate.poll() for _ in range(5)] == [False] * 5
    [told] = caplog.records
    assert told.levelno == logging.ERROR
    assert str(files.key if how != "cut off" else files.certificate) in told.message
    assert certificate.fault in told.message
    with https_server(certificate.context) as port, Client(port, client_context(old)) as client:
        assert (client.server_name, client.get()) == ("old", "ok")
    files.put(new)
    assert certificate.poll()
    assert certificate.fault == ""
    with https_server(certificate.context) as port, Client(port, client_context(new)) as client:
        assert client.server_name == "new"


def test_a_secrets_volume_is_swapped_as_one(
    tmp_path: Path, old: Made, new: Made, caplog: pytest.LogCaptureFixture
) -> None:
    for version, made in (("..1", old), ("..2", new)):
        (tmp_path / version).mkdir()
        Files(tmp_path / version, made)
    (tmp_path / "..data").symlink_to("..1")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    certificate = Certificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    (tmp_path / "..fresh").symlink_to("..2")
    (tmp_path / "..fresh").rename(tmp_path / "..data")
    assert certificate.poll()
    with https_server(certificate.context) as port, Client(port, client_context(new)) as client:
        assert client.server_name == "new"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def faulty(tmp_path: Path, old: Made, new: Made) -> dict[str, tuple[Files, str, str]]:
    def made(name: str, **content: bytes) -> Files:
        (tmp_path / name).mkdir()
        files = Files(tmp_path / name, old)
        files.write(**content)
        return files

    weak = make("weak", key=rsa_key())
    no_certificate, no_key, folder = made("a"), made("b"), made("c")
    no_certificate.certificate.unlink()
    no_key.key.unlink()
    folder.key.unlink()
    folder.key.mkdir()
    return {
        "no certificate": (no_certificate, "tls_certificate", "cannot be read (No such file"),
        "no key": (no_key, "tls_key", "cannot be read (No such file"),
        "a folder": (folder, "tls_key", "cannot be read (Is a directory"),
        "another's key": (made("d", key=new.key_pem), "tls_key", "does not belong to the first certificate"),
        "another kind of key": (made("e", key=weak.key_pem), "tls_key", "does not belong"),
        "locked": (made("f", key=old.locked_key_pem), "tls_key", "is encrypted"),
        "no PEM": (made("g", certificate=b"hello"), "tls_certificate", "holds no certificate"),
        "a key for a certificate": (made("h", certificate=old.key_pem), "tls_certificate", "no certificate"),
        "a certificate for a key": (made("i", key=old.pem), "tls_key", "holds no private key"),
        "cut off": (made("j", key=old.key_pem[:80]), "tls_key", "holds no private key"),
        "chain first": (
            made("k", certificate=new.pem + old.pem),
            "tls_key",
            "server's own certificate first",
        ),
        "too large": (made("l", key=b" " * (2 << 20)), "tls_key", "cannot be read (Larger than"),
    }


def test_faults_at_the_start_name_the_file_and_what_is_wrong(tmp_path: Path, old: Made, new: Made) -> None:
    for case, (files, field, told) in faulty(tmp_path, old, new).items():
        with pytest.raises(ConfigError) as refused:
            certificate_of(files)
        assert refused.value.field == field, case
        assert refused.value.value == str(files.key if field == "tls_key" else files.certificate), case
        assert told in str(refused.value), case
        assert "PRIVATE" not in str(refused.value)


def test_a_key_that_openssl_finds_too_weak_is_refused_by_its_words(tmp_path: Path) -> None:
    files = Files(tmp_path, make("weak", key=rsa.generate_private_key(public_exponent=65537, key_size=1024)))
    with pytest.raises(ConfigError, match="KEY_TOO_SMALL"):
        certificate_of(files)


@pytest.mark.parametrize(
    ("start", "end", "told"), [(-DAY, -DAY / 2, "ran out at"), (DAY, 2 * DAY, "is not valid before")]
)
def test_a_certificate_out_of_its_time_is_told_and_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: timedelta, end: timedelta, told: str
) -> None:
    files = Files(tmp_path, make("late", start=start, end=end))
    certificate = certificate_of(files)
    certificate.poll()
    [record] = caplog.records
    assert told in record.message
    assert str(files.certificate) in record.message
    with https_server(certificate.context) as port, Client(port, client_context()) as client:
        assert client.get() == "ok"


def test_a_certificate_that_runs_out_meanwhile_is_told_once(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    now = [time.time()]
    certificate = certificate_of(files, clock=lambda: now[0])
    assert certificate.not_after == pytest.approx(now[0] + 3600, abs=60)
    certificate.poll()
    assert not caplog.records
    now[0] = certificate.not_after
    certificate.poll()
    certificate.poll()
    [record] = caplog.records
    assert "ran out at" in record.message


def test_only_clients_of_the_authority_get_in_and_it_can_be_replaced(tmp_path: Path, files: Files) -> None:
    first, second = make("first", authority=True), make("second", authority=True)
    mine = {}
    for authority in (first, second):
        name = str(authority.certificate.subject.rfc4514_string())[3:]
        (tmp_path / name).mkdir()
        own = Files(tmp_path / name, make("client", signer=authority))
        mine[name] = client_context(own=(own.certificate, own.key))
    authorities = tmp_path / "ca.crt"
    authorities.write_bytes(first.pem)
    certificate = certificate_of(files, client_ca=aged(authorities))

    def let_in(context: ssl.SSLContext) -> bool:
        try:
            with Client(port, context) as client:
                return client.get() == "ok"
        except (ssl.SSLError, ConnectionResetError, BrokenPipeError):
            return False

    with https_server(certificate.context) as port:
        assert [let_in(c) for c in (mine["first"], mine["second"], client_context())] == [True, False, False]
        authorities.write_bytes(second.pem)
        aged(authorities)
        assert certificate.poll()
        assert [let_in(c) for c in (mine["first"], mine["second"], client_context())] == [False, True, False]
        authorities.write_bytes(b"no authority")
        aged(authorities)
        assert not certificate.poll()
        assert "tls_client_ca" in certificate.fault
        assert let_in(mine["second"])


def test_a_client_authority_that_is_none_is_refused(tmp_path: Path, files: Files) -> None:
    for content in (b"", b"no authority", b"\xff"):
        (tmp_path / "ca.crt").write_bytes(content)
        with pytest.raises(ConfigError, match="tls_client_ca") as refused:
            certificate_of(files, client_ca=tmp_path / "ca.crt")
        assert str(tmp_path / "ca.crt") in str(refused.value)


@pytest.mark.parametrize("asked_for", [False, True])
def test_a_session_is_taken_up_again_unless_clients_show_certificates(
    tmp_path: Path, files: Files, asked_for: bool
) -> None:
    authority = make("authority", authority=True)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    (tmp_path / "client").mkdir()
    own = Files(tmp_path / "client", make("client", signer=authority))
    context = client_context(own=(own.certificate, own.key))
    certificate = certificate_of(files, client_ca=tmp_path / "ca.crt" if asked_for else None)

    def resumed(session: ssl.SSLSession | None) -> tuple[bool | None, ssl.SSLSession | None]:
        with (
            socket.create_connection(("127.0.0.1", port)) as sock,
            context.wrap_socket(sock, server_hostname="localhost", session=session) as tls,
        ):
            tls.sendall(b"GET / HTTP/1.1\r\nhost: router\r\n\r\n")
            assert tls.recv(1000).startswith(b"HTTP/1.1 200")
            return tls.session_reused, tls.session

    with https_server(certificate.context) as port:
        first, session = resumed(None)
        again, _ = resumed(session)
    assert (first, again) == (False, not asked_for)


def test_clients_that_show_certificates_need_tls_1_3(tmp_path: Path, files: Files) -> None:
    """The sessions of 1.2 can be taken up again without one."""
    authority = make("authority", authority=True)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    certificate = certificate_of(files, client_ca=tmp_path / "ca.crt")
    context = client_context()
    assert handshake_fault(certificate.context, context) == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake_fault(certificate.context, context) == "UNSUPPORTED_PROTOCOL"


def test_a_private_key_is_written_nowhere(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.rglob("*"))
    given: list[tuple[str, str]] = []
    load = ssl.SSLContext.load_cert_chain

    def note(self: ssl.SSLContext, certificate: str, key: str, password: object) -> None:
        given.append((certificate, key))
        load(self, certificate, key, password)  # type: ignore[arg-type]

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", note)
    certificate_of(files)
    assert sorted(tmp_path.rglob("*")) == before
    assert all(path.startswith("/proc/self/fd/") for pair in given for path in pair)
    assert not any(Path(path).exists() for pair in given for path in pair), "closed again"
