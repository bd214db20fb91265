"""The command line: options into a config, and errors that name the option."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import plait.router
from plait.router.command import router
from plait.router.config import PrefillTarget, RouterConfig

GIVEN = ["--prefill", "http://p:1,8998", "--decode", "http://d:1"]


def invoke(
    monkeypatch: pytest.MonkeyPatch, *args: str, env: dict[str, str] | None = None
) -> tuple[Any, RouterConfig]:
    served: list[RouterConfig] = []
    monkeypatch.setattr(plait.router, "serve", served.append)
    app = typer.Typer()
    app.command()(router)
    result = CliRunner().invoke(app, list(args), env=env)
    return result, served[0] if served else None  # type: ignore[return-value]


def test_options_make_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    more = ["--prefill", "http://q:1,8999", "--port", "9", "--admin-port", "10", "--max-body-mib", "2"]
    result, config = invoke(
        monkeypatch, *GIVEN, *more, "--first-byte-timeout", "7", env={"ENGINE_API_KEY": "k"}
    )
    assert result.exit_code == 0, result.output
    assert config.prefill == (PrefillTarget("http://p:1", 8998), PrefillTarget("http://q:1", 8999))
    assert config.decode == ("http://d:1",)
    assert (config.port, config.admin_port, config.max_body_bytes) == (9, 10, 2 << 20)
    assert (config.deadlines.first_byte, config.deadlines.idle) == (7, 120)
    assert config.engine_api_key == "k"


def test_prefill_without_a_port_has_the_engines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    result, config = invoke(monkeypatch, "--prefill", "http://p:1", "--decode", "http://d:1")
    assert result.exit_code == 0, result.output
    assert config.prefill == (PrefillTarget("http://p:1", 8998),)


# What each option sets, in the config that is made of it.
OPTIONS: list[tuple[list[str], str, Any]] = [
    (["--policy", "random"], "policy", "random"),
    (["--decode-policy", "round-robin"], "decode_policy", "round-robin"),
    (["--sticky-header", "x-user"], "sticky_header", "x-user"),
    (["--bound", "2"], "bound", 2.0),
    (["--engine-ca", "ca.pem"], "engine_ca", "ca.pem"),
    (["--engine-insecure"], "engine_insecure", True),
    (["--host", "::1"], "host", "::1"),
    (["--admin-host", "::"], "admin_host", "::"),
    (["--admin-port", "9", "--processes", "3"], "processes", 3),
    (["--admin-port", "9", "--api-keys", "a", "--api-keys", "b"], "api_keys", ["a", "b"]),
    (["--admin-port", "9", "--admin-api-key", "k"], "admin_api_key", "k"),
    (["--tls-certificate", "c", "--tls-key", "k"], "tls_key", "k"),
    (["--tls-certificate", "c", "--tls-key", "k", "--tls-client-ca", "a"], "tls_client_ca", "a"),
    (["--otlp-endpoint", "http://c:4318"], "otlp_endpoint", "http://c:4318"),
    (["--otlp-sample", "0.5"], "otlp_sample", 0.5),
    (["--worker-limit", "5"], "worker_limit", 5),
    (["--queue-limit", "0"], "queue_limit", 0),
    (["--retries", "0"], "retries", 0),
    (["--poll-interval", "2"], "poll_interval", 2.0),
    (["--connect-timeout", "7"], "deadlines.connect", 7.0),
    (["--idle-timeout", "7"], "deadlines.idle", 7.0),
    (["--total-timeout", "7"], "deadlines.total", 7.0),
    (["--queue-timeout", "7"], "deadlines.queue", 7.0),
    (["--stall-timeout", "7"], "deadlines.client_stall", 7.0),
    (["--head-timeout", "7"], "deadlines.head", 7.0),
    (["--body-timeout", "7"], "deadlines.body", 7.0),
    (["--status-timeout", "7"], "deadlines.status", 7.0),
    (["--drain-timeout", "7"], "deadlines.drain", 7.0),
]


@pytest.mark.parametrize(("args", "name", "value"), OPTIONS, ids=[o[1] for o in OPTIONS])
def test_option_reaches_its_setting(
    monkeypatch: pytest.MonkeyPatch, args: list[str], name: str, value: Any
) -> None:
    result, config = invoke(monkeypatch, *GIVEN, *args)
    assert result.exit_code == 0, result.output
    assert attrgetter(name)(config) == value


def test_workers_come_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    result, config = invoke(monkeypatch, "--workers-file", "workers.yaml")
    assert result.exit_code == 0, result.output
    assert (config.workers_file, config.prefill, config.decode) == ("workers.yaml", (), ())


def test_workers_come_from_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    more = [
        "--kubernetes-namespace",
        "n",
        "--kubernetes-instance",
        "i",
        "--kubernetes-decode",
        "plait.dev/role=d",
    ]
    result, config = invoke(monkeypatch, "--kubernetes", *more)
    assert result.exit_code == 0, result.output
    assert config.kubernetes is not None
    assert (config.kubernetes.namespace, config.kubernetes.instance) == ("n", "i")
    assert (config.kubernetes.prefill, config.kubernetes.decode) == (
        "plait.dev/role=prefill",
        "plait.dev/role=d",
    )


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--prefill", "http://p:1,", "--decode", "http://d:1"], "URL,BOOTSTRAP_PORT"),
        (["--prefill", "http://p:1,1", "--decode", "d"], "decode"),
        ([*GIVEN, "--port", "99999"], "port"),
        ([*GIVEN, "--idle-timeout", "0"], "idle"),
        ([*GIVEN, "--log-level", "loud"], "loud"),
        (["--decode", "http://d:1"], "--prefill"),
        ([], "--prefill"),
        ([*GIVEN, "--workers-file", "w.yaml"], "one source"),
        ([*GIVEN, "--kubernetes"], "one source"),
        ([*GIVEN, "--policy", "best"], "prefix-aware"),
        ([*GIVEN, "--decode-policy", "best"], "least-load"),
        ([*GIVEN, "--processes", "2"], "admin_port"),
        ([*GIVEN, "--api-keys", "keys"], "admin_port"),
        ([*GIVEN, "--tls-certificate", "c.pem"], "tls_key"),
        ([*GIVEN, "--queue-limit", "-1"], "queue_limit"),
        ([*GIVEN, "--queue-timeout", "nan"], "queue"),
    ],
)
def test_wrong_options_are_named(monkeypatch: pytest.MonkeyPatch, args: list[str], word: str) -> None:
    result, config = invoke(monkeypatch, *args)
    assert result.exit_code == 2
    assert config is None
    assert word in result.output
    assert "Traceback" not in result.output
