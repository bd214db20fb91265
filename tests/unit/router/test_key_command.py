"""`plait key`: what it prints lets its key in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from plait.router.config import ConfigError
from plait.router.key_command import key, make_key
from plait.router.keys import KeyFile
from plait.router.rates import Rate

app = typer.Typer()
app.command("key")(key)


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ([], None),
        (["--rate", "30/min"], Rate(0.5, 30)),
        (["--rate", "2/s", "--burst", "9"], Rate(2.0, 9)),
    ],
)
def test_the_key_goes_in_by_its_line(tmp_path: Path, options: list[str], rate: Rate | None) -> None:
    result = CliRunner().invoke(app, ["team-a", *options])
    assert result.exit_code == 0
    secret, line = result.stdout.splitlines()
    assert re.fullmatch(r"plait-[A-Za-z0-9_-]{43}", secret)
    assert secret not in line
    assert secret not in result.stderr
    (tmp_path / "keys").write_text(line + "\n")
    found = KeyFile([tmp_path / "keys"]).check([(b"authorization", f"Bearer {secret}".encode())])
    assert found is not None
    assert found.name == "team-a"
    assert (found.limiter and found.limiter.rate) == rate


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["a b"], "name = 'a b'"),
        (["a", "--rate", "5"], "rate = '5': write N/s or N/min"),
        (["a", "--rate", "5/s", "--burst", "x"], "burst = 'x'"),
        (["a", "--burst", "5"], "burst = '5': give a rate too"),
    ],
)
def test_what_no_file_could_hold_is_refused_and_no_key_made(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert told in result.stderr


def test_a_key_that_is_given_as_a_name_is_not_repeated() -> None:
    secret, _ = make_key("a")
    with pytest.raises(ConfigError) as refused:
        make_key(secret)
    assert secret not in str(refused.value)


def test_keys_differ() -> None:
    made = {make_key("a") for _ in range(100)}
    assert len({secret for secret, _ in made}) == len({line for _, line in made}) == 100
