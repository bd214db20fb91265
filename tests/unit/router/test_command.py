"""The command line: options into a config, and errors that name the option."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--prefill", "http://p:1", "--decode", "http://d:1"], "URL,BOOTSTRAP_PORT"),
        (["--prefill", "http://p:1,1", "--decode", "d"], "decode"),
        ([*GIVEN, "--port", "99999"], "port"),
        ([*GIVEN, "--idle-timeout", "0"], "idle"),
        ([*GIVEN, "--log-level", "loud"], "loud"),
        (["--decode", "http://d:1"], "--prefill"),
    ],
)
def test_wrong_options_are_named(monkeypatch: pytest.MonkeyPatch, args: list[str], word: str) -> None:
    result, config = invoke(monkeypatch, *args)
    assert result.exit_code == 2
    assert config is None
    assert word in result.output
    assert "Traceback" not in result.output
