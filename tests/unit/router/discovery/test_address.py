"""Addresses: what is accepted, what form they get, and what a refusal says."""

from __future__ import annotations

import pytest

from plait.router.config import ConfigError
from plait.router.discovery import address


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("http://10.0.0.1:30000", "http://10.0.0.1:30000"),
        ("http://10.0.0.1:30000/", "http://10.0.0.1:30000"),
        ("HTTP://Engine-0.Pool.SVC:80", "http://engine-0.pool.svc:80"),
        ("https://engine_0", "https://engine_0"),
        ("http://[FD00::1]:30000", "http://[fd00::1]:30000"),
        ("http://[::1]", "http://[::1]"),
        ("http://engine.example.", "http://engine.example."),
    ],
)
def test_urls_get_one_form(text: str, clean: str) -> None:
    assert address.engine_url("decode", text) == clean
    assert address.engine_url("decode", clean) == clean


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1:30000",
        "ftp://a:1",
        "http://",
        "http://a:0",
        "http://a:65536",
        "http://a:",
        "http://a:x",
        "http://a/v1",
        "http://a?x=1",
        "http://a#x",
        "http://a b:1",
        "http://a\n:1",
        "http://a\t:1",
        "http://-a:1",
        "http://a..b:1",
        "http://[::1",
        "http://[10.0.0.1]:1",
        "http://" + "a" * 64,
        " http://a:1",
    ],
)
def test_refused_urls_name_field_value_and_fix(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        address.engine_url("workers.decode[3].url", text)
    assert caught.value.field == "workers.decode[3].url"
    assert caught.value.value == text
    assert "http://HOST:PORT" in caught.value.fix


@pytest.mark.parametrize("text", ["http://user:hunter2@a:1", "http://hunter2@a:x", "hunter2@a"])
def test_a_password_in_a_url_is_refused_and_not_printed(text: str) -> None:
    with pytest.raises(ConfigError, match="no user") as caught:
        address.engine_url("decode", text)
    assert "hunter2" not in str(caught.value)
    assert str(caught.value.value).endswith(text.rpartition("@")[2])


@pytest.mark.parametrize("text", ["10.0.0.1", "fd00::1", "engine-0.pool", "ENGINE"])
def test_bootstrap_hosts(text: str) -> None:
    assert address.bootstrap_host("prefill", text) == text.lower()


@pytest.mark.parametrize("text", ["", "http://a", "a:1", "[fd00::1]", "a/b", "a b"])
def test_refused_bootstrap_hosts(text: str) -> None:
    with pytest.raises(ConfigError, match="no scheme, no port, no brackets"):
        address.bootstrap_host("prefill", text)


@pytest.mark.parametrize("number", [0, -1, 65_536])
def test_refused_ports(number: int) -> None:
    with pytest.raises(ConfigError, match="between 1 and 65535"):
        address.port("prefill bootstrap port", number)


def test_join_and_host_of_are_inverse() -> None:
    for host in ("10.0.0.1", "fd00::1", "engine"):
        assert address.host_of(address.join("http", host, 30000)) == host
    assert address.join("http", "engine", None) == "http://engine"
