"""Settings: wrong ones are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from plait.router.config import POLICIES, ConfigError, Deadlines, PrefillTarget, RouterConfig
from plait.router.discovery.kubernetes.settings import KubernetesSettings
from plait.router.placement.policy import Policy

KUBERNETES = KubernetesSettings(prefill="a=b", decode="a=c")
PREFILL = [PrefillTarget("http://p:1", 8998)]
DECODE = ["http://d:1/"]


def config(**changed: Any) -> RouterConfig:
    return RouterConfig(**{"prefill": PREFILL, "decode": DECODE, **changed})


def test_urls_are_cleaned() -> None:
    made = config(prefill=[PrefillTarget("https://P:1/", 8998)])
    assert made.prefill == (PrefillTarget("https://p:1", 8998),)
    assert made.decode == ("http://d:1",)


@pytest.mark.parametrize(
    "url", ["p:1", "ftp://p", "http://", "http://p:x", "http://p/v1", "http://p?x=1", "", " http://p"]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(decode=[url])
    assert caught.value.field == "decode"
    assert repr(url) in str(caught.value)


def test_user_in_an_url_is_refused_and_not_told() -> None:
    with pytest.raises(ConfigError) as caught:
        config(decode=["http://me:secret@p"])
    assert caught.value.field == "decode"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"prefill": []}, "prefill"),
        ({"decode": []}, "decode"),
        ({"decode": ["http://d:1", "http://d:1/"]}, "prefill, decode"),
        ({"decode": ["http://p:1"]}, "prefill, decode"),
        ({"prefill": [PrefillTarget("http://p:1", 0)]}, "prefill bootstrap port"),
        ({"port": 70_000}, "port"),
        ({"port": 80, "admin_port": 80}, "admin_port"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"max_batch": 0}, "max_batch"),
        ({"poll_misses": 0}, "poll_misses"),
        ({"poll_interval": 0.0}, "poll_interval"),
        ({"status_cache": -1.0}, "status_cache"),
        ({"prefill": [], "decode": []}, "prefill"),
        ({"workers_file": "w"}, "workers_file"),
        ({"workers_file": "w", "prefill": [], "decode": [], "kubernetes": KUBERNETES}, "kubernetes"),
        ({"processes": 0}, "processes"),
        ({"processes": 65, "admin_port": 1}, "processes"),
        ({"processes": 2}, "admin_port"),
        ({"processes": 2, "admin_port": 1, "port": 0}, "port"),
        ({"api_keys": ["k"]}, "admin_port"),
        ({"admin_api_key": "k"}, "admin_port"),
        ({"tls_certificate": "c"}, "tls_key"),
        ({"tls_key": "k"}, "tls_certificate"),
        ({"tls_client_ca": "a"}, "tls_certificate"),
        ({"policy": "best"}, "policy"),
        ({"decode_policy": ""}, "decode_policy"),
        ({"bound": 0.9}, "bound"),
        ({"worker_limit": 0}, "worker_limit"),
        ({"queue_limit": -1}, "queue_limit"),
        ({"retries": -1}, "retries"),
        ({"max_head_bytes": 0}, "max_head_bytes"),
        ({"max_headers": 0}, "max_headers"),
        ({"max_samples": 0}, "max_samples"),
        ({"max_answer_bytes": 0}, "max_answer_bytes"),
    ],
)
def test_wrong_settings_are_named(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**changed)
    assert caught.value.field == field
    assert caught.value.fix


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
def test_no_wait_is_without_end(seconds: float) -> None:
    with pytest.raises(ConfigError, match="idle"):
        Deadlines(idle=seconds)


def test_target_is_written_as_url_and_port() -> None:
    assert PrefillTarget.parse("http://p:1, 8999") == PrefillTarget("http://p:1", 8999)
    assert PrefillTarget.parse(" http://p:1") == PrefillTarget("http://p:1", 8998)
    for text in ("http://p:1,", "http://p:1,x", ",", "http://p:1,-1"):
        with pytest.raises(ConfigError, match=r"URL,BOOTSTRAP_PORT"):
            PrefillTarget.parse(text)


def test_policies_are_those_of_placement() -> None:
    assert set(POLICIES) == set(Policy)


@pytest.mark.parametrize(
    ("url", "host"), [("http://10.0.0.1:3", "10.0.0.1"), ("http://[fd00::1]:3", "fd00::1")]
)
def test_bootstrap_host(url: str, host: str) -> None:
    assert PrefillTarget(url, 1).bootstrap_host == host


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(config(engine_api_key="secret", admin_api_key="secret", admin_port=1))
