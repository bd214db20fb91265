"""Targets as values: what they hold, and when two are the same worker."""

from __future__ import annotations

import pytest

from plait.router.config import ConfigError
from plait.router.discovery.target import Target, distinct
from plait.router.pairing import Side


def test_a_prefill_target_has_its_bootstrap_address() -> None:
    target = Target.prefill("http://10.0.0.1:30000/", bootstrap_port=8998)
    assert target == (Side.PREFILL, "http://10.0.0.1:30000", "10.0.0.1", 8998, "", False, "")
    other = Target.prefill("http://[fd00::1]:30000", bootstrap_port=8998)
    assert other.bootstrap_host == "fd00::1"
    named = Target.prefill("http://front:30000", bootstrap_port=8998, bootstrap_host="10.0.0.1")
    assert named.bootstrap_host == "10.0.0.1"


def test_no_bootstrap_port_is_assumed() -> None:
    with pytest.raises(ConfigError) as caught:
        Target.prefill("http://10.0.0.1:30000", bootstrap_port=0, field="workers.prefill[0]")
    assert caught.value.field == "workers.prefill[0] bootstrap port"
    assert caught.value.value == 0


def test_a_decode_target_has_none() -> None:
    target = Target.decode("http://10.0.0.2:30000")
    assert (target.bootstrap_host, target.bootstrap_port) == ("", 0)


def test_the_key_is_the_worker_and_not_its_state() -> None:
    one = Target.decode("http://10.0.0.2:30000", identity="uid/0")
    assert one._replace(draining=True, reason="deleted").key == one.key
    assert one._replace(identity="uid/1").key != one.key
    assert len({one.key, one._replace(draining=True).key, one._replace(identity="uid/1").key}) == 2


def test_an_address_stands_once() -> None:
    prefill = Target.prefill("http://a:1", bootstrap_port=2)
    decode = Target.decode("http://b:1")
    assert distinct([prefill, decode]) == (prefill, decode)
    with pytest.raises(ConfigError, match="every engine once") as caught:
        distinct([prefill, Target.decode("http://A:1/")])
    assert (caught.value.field, caught.value.value) == ("prefill, decode", "http://a:1")
    with pytest.raises(ConfigError) as caught:
        distinct([decode, decode._replace(identity="x")])
    assert caught.value.field == "decode"
