"""`plait key`: a fresh API key, and the line for a key file that lets it in."""

from __future__ import annotations

from typing import Annotated

import typer


def key(
    name: Annotated[str, typer.Argument(help="What logs and metrics call the key; not secret.")],
    rate: Annotated[
        str, typer.Option(metavar="N/s|N/min", help="Requests that each router process lets it make.")
    ] = "",
    burst: Annotated[str, typer.Option(metavar="N", help="Requests at once (default: the rate's N).")] = "",
) -> None:
    """Make an API key. Line 1 is the key, for its user; line 2 goes into the router's key file."""
    from plait.router.config import ConfigError

    try:
        secret, line = make_key(name, rate=rate, burst=burst)
    except ConfigError as error:
        typer.echo(f"plait key: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(secret)
    typer.echo(line)
    typer.echo("Line 1, the key, is kept nowhere: hand it over now. Line 2 goes into the key file.", err=True)


def make_key(name: str, *, rate: str = "", burst: str = "") -> tuple[str, str]:
    """A new random key (256 bits) and its line. Raises ConfigError for a name, rate or burst of no use."""
    import secrets

    from plait.router.config import ConfigError
    from plait.router.key_lines import KEY_PREFIX, KeyLine, check_name, digest_of
    from plait.router.rates import Rate

    check_name(name)
    if burst and not rate:
        raise ConfigError("burst", burst, "give a rate too, for example --rate 20/s")
    if rate:
        Rate.parse(rate, burst=burst or None)
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    options = [f"rate={rate}"] * bool(rate) + [f"burst={burst}"] * bool(burst)
    return secret, " ".join((str(KeyLine(name, digest_of(secret.encode()), None)), *options))
