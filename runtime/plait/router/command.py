"""`plait router`: the command line of the router."""

from __future__ import annotations

from typing import Annotated

import typer

_DEADLINES = "Deadlines"


def router(
    prefill: Annotated[
        list[str], typer.Option(metavar="URL,BOOTSTRAP_PORT", help="A prefill group; give one per group.")
    ],
    decode: Annotated[list[str], typer.Option(metavar="URL", help="A decode engine; give one per engine.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    admin_port: Annotated[
        int, typer.Option(help="Serve /metrics and /api on this port instead (0: on the same port).")
    ] = 0,
    engine_api_key: Annotated[
        str,
        typer.Option(
            envvar="ENGINE_API_KEY",
            help="Key that the engines ask for; without it a client's own Authorization is passed on.",
        ),
    ] = "",
    max_body_mib: Annotated[int, typer.Option(help="Largest request, in MiB.")] = 32,
    connect_timeout: Annotated[
        float, typer.Option(help="Seconds to open a connection to an engine.", rich_help_panel=_DEADLINES)
    ] = 5.0,
    first_byte_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds until an answer's first byte: the whole prefill.", rich_help_panel=_DEADLINES
        ),
    ] = 600.0,
    idle_timeout: Annotated[
        float, typer.Option(help="Seconds between two reads of an answer.", rich_help_panel=_DEADLINES)
    ] = 120.0,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that requests may take after SIGTERM.", rich_help_panel=_DEADLINES)
    ] = 30.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Pair prefill and decode engines behind one OpenAI-compatible address."""
    import logging

    from plait.router import serve
    from plait.router.config import ConfigError, Deadlines, PrefillTarget, RouterConfig

    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter(
            f"{log_level!r} is not debug, info, warning or error", param_hint="--log-level"
        )
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = RouterConfig(
            prefill=[PrefillTarget.parse(text) for text in prefill],
            decode=decode,
            host=host,
            port=port,
            admin_port=admin_port,
            engine_api_key=engine_api_key,
            max_body_bytes=max_body_mib << 20,
            deadlines=Deadlines(
                connect=connect_timeout,
                first_byte=first_byte_timeout,
                idle=idle_timeout,
                drain=drain_timeout,
            ),
        )
        serve(config)
    except ConfigError as error:
        typer.echo(f"plait router: {error}", err=True)
        raise typer.Exit(2) from error
