"""TLS towards engines: who is trusted to be one."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest
from tests.unit.router.certificates import Client, Files, Made, aged, https_server, make

from plait.router.config import ConfigError
from plait.router.engine_tls import EngineTrust
from plait.router.tls import Certificate


@pytest.fixture(scope="module")
def authority() -> Made:
    return make("authority", authority=True)


@pytest.fixture
def engine(tmp_path: Path, authority: Made) -> Certificate:
    files = Files(tmp_path, make("engine", signer=authority))
    return Certificate(files.certificate, files.key)


def ca_file(tmp_path: Path, made: Made) -> Path:
    path = tmp_path / "ca.crt"
    path.write_bytes(made.pem)
    return aged(path)


def test_an_engine_of_the_authority_is_trusted_by_name_and_by_address(
    tmp_path: Path, authority: Made, engine: Certificate
) -> None:
    trust = EngineTrust(ca=ca_file(tmp_path, authority))
    with https_server(engine.context) as port:
        for host in ("localhost", "127.0.0.1"):
            with Client(port, trust.context, host=host) as client:
                assert (client.get(), client.protocol) == ("ok", ("TLSv1.3", "http/1.1"))


@pytest.mark.parametrize(
    ("host", "told"), [("localhost", "Hostname mismatch"), ("127.0.0.1", "IP address mismatch")]
)
def test_an_engine_under_another_name_is_not(tmp_path: Path, authority: Made, host: str, told: str) -> None:
    trust = EngineTrust(ca=ca_file(tmp_path, authority))
    files = Files(tmp_path, make("other", signer=authority, host="other", address="10.0.0.1"))
    with (
        https_server(Certificate(files.certificate, files.key).context) as port,
        pytest.raises(ssl.SSLCertVerificationError, match=told),
        Client(port, trust.context, host=host),
    ):
        pass


def test_an_engine_of_another_authority_is_not(tmp_path: Path, engine: Certificate) -> None:
    other = EngineTrust(ca=ca_file(tmp_path, make("other", authority=True)))
    system = EngineTrust()
    with https_server(engine.context) as port:
        for trust in (other, system):
            with pytest.raises(ssl.SSLCertVerificationError), Client(port, trust.context):
                pass


def test_nothing_is_checked_only_when_asked_for_and_the_log_says_so(
    engine: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    trust = EngineTrust(insecure=True)
    assert "NOT checked" in caplog.text
    with https_server(engine.context) as port, Client(port, trust.context, host="127.0.0.1") as client:
        assert client.get() == "ok"
    assert EngineTrust().context.verify_mode is ssl.CERT_REQUIRED
    assert EngineTrust().context.check_hostname


def test_insecure_beside_an_authority_is_refused(tmp_path: Path, authority: Made) -> None:
    with pytest.raises(ConfigError, match="engine_ca") as refused:
        EngineTrust(ca=ca_file(tmp_path, authority), insecure=True)
    assert "insecure" in refused.value.fix


def test_a_file_without_authorities_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"none")
    for path, told in ((tmp_path / "ca.crt", "no certificates"), (tmp_path / "none", "No such file")):
        with pytest.raises(ConfigError, match=told) as refused:
            EngineTrust(ca=path)
        assert (refused.value.field, refused.value.value) == ("engine_ca", str(path))


def test_new_authorities_are_taken_up_and_bad_ones_are_not(
    tmp_path: Path, authority: Made, engine: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    path = ca_file(tmp_path, make("other", authority=True))
    trust = EngineTrust(ca=path)
    assert not trust.poll()
    before = trust.context
    path.write_bytes(b"none")
    aged(path)
    assert [trust.poll(), trust.poll()] == [False, False]
    [told] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert str(path) in told.message
    assert trust.fault in told.message
    assert trust.context is before
    ca_file(tmp_path, authority)
    assert trust.poll()
    assert trust.fault == ""
    with https_server(engine.context) as port, Client(port, trust.context) as client:
        assert client.get() == "ok"
    assert not EngineTrust().poll()
