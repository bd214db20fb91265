"""`plait router`: the command line of the router."""

from __future__ import annotations

from typing import Annotated, Any

import typer

_DEADLINES = "Deadlines (seconds)"
_WORKERS = "Workers"
_LIMITS = "Limits"
_SECURITY = "Security"


def _seconds(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel=_DEADLINES)


def _limit(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel=_LIMITS)


def router(
    prefill: Annotated[
        list[str],
        typer.Option(
            metavar="URL,BOOTSTRAP_PORT",
            help="A prefill group; give one per group. The bootstrap port is 8998 where left out.",
            rich_help_panel=_WORKERS,
        ),
    ] = [],  # noqa: B006 (typer's way; never changed)
    decode: Annotated[
        list[str],
        typer.Option(metavar="URL", help="A decode engine; give one per engine.", rich_help_panel=_WORKERS),
    ] = [],  # noqa: B006
    workers_file: Annotated[
        str,
        typer.Option(
            help="A file that lists the workers (YAML), read again when it changes.", rich_help_panel=_WORKERS
        ),
    ] = "",
    kubernetes: Annotated[
        bool, typer.Option(help="Find the workers among the namespace's pods.", rich_help_panel=_WORKERS)
    ] = False,
    kubernetes_namespace: Annotated[
        str, typer.Option(help="Namespace (default: the router's own).", rich_help_panel=_WORKERS)
    ] = "",
    kubernetes_instance: Annotated[
        str,
        typer.Option(help="Only pods with this app.kubernetes.io/instance label.", rich_help_panel=_WORKERS),
    ] = "",
    kubernetes_prefill: Annotated[
        str, typer.Option(help="Label selector of prefill pods.", rich_help_panel=_WORKERS)
    ] = "plait.dev/role=prefill",
    kubernetes_decode: Annotated[
        str, typer.Option(help="Label selector of decode pods.", rich_help_panel=_WORKERS)
    ] = "plait.dev/role=decode",
    policy: Annotated[
        str,
        typer.Option(
            help="Choice of prefill workers: prefix-aware, least-load, round-robin or random.",
            rich_help_panel=_WORKERS,
        ),
    ] = "prefix-aware",
    decode_policy: Annotated[
        str, typer.Option(help="Choice of decode workers.", rich_help_panel=_WORKERS)
    ] = "least-load",
    sticky_header: Annotated[
        str,
        typer.Option(
            help="Requests with equal values of this header stay together.", rich_help_panel=_WORKERS
        ),
    ] = "x-session-id",
    bound: Annotated[
        float,
        typer.Option(
            help="Load over the mean that a worker may have and still be chosen for its cache.",
            rich_help_panel=_WORKERS,
        ),
    ] = 1.25,
    engine_api_key: Annotated[
        str,
        typer.Option(envvar="ENGINE_API_KEY", help="Key that the engines ask for.", rich_help_panel=_WORKERS),
    ] = "",
    engine_ca: Annotated[
        str, typer.Option(help="Authorities (PEM) of https engines.", rich_help_panel=_WORKERS)
    ] = "",
    engine_insecure: Annotated[
        bool, typer.Option(help="Do not check the certificates of https engines.", rich_help_panel=_WORKERS)
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    admin_host: Annotated[str, typer.Option(help="Address of the admin port (default: --host).")] = "",
    admin_port: Annotated[
        int,
        typer.Option(
            help="Serve /metrics, /api and the admin API on this port (0: no admin API, the rest on --port)."
        ),
    ] = 0,
    processes: Annotated[
        int,
        typer.Option(help="Processes that serve clients; limits, breakers and queues are per process."),
    ] = 1,
    api_keys: Annotated[
        list[str],
        typer.Option(
            metavar="PATH",
            help="File or folder of hashed client keys (plait key makes them); read again when changed.",
            rich_help_panel=_SECURITY,
        ),
    ] = [],  # noqa: B006
    admin_api_key: Annotated[
        str,
        typer.Option(envvar="ADMIN_API_KEY", help="Key of the admin API.", rich_help_panel=_SECURITY),
    ] = "",
    tls_certificate: Annotated[
        str, typer.Option(help="Certificate chain (PEM) for clients.", rich_help_panel=_SECURITY)
    ] = "",
    tls_key: Annotated[str, typer.Option(help="Its key (PEM).", rich_help_panel=_SECURITY)] = "",
    tls_client_ca: Annotated[
        str,
        typer.Option(help="Authorities (PEM): only clients they certify get in.", rich_help_panel=_SECURITY),
    ] = "",
    otlp_endpoint: Annotated[
        str, typer.Option(metavar="URL", help="Send traces to this OTLP/HTTP collector.")
    ] = "",
    otlp_sample: Annotated[float, typer.Option(help="Part of the traces that is kept, 0 to 1.")] = 1.0,
    worker_limit: Annotated[int, _limit("Requests under way on one worker, per process; more wait.")] = 1024,
    queue_limit: Annotated[int, _limit("Requests that wait, per process; more get 429.")] = 1024,
    retries: Annotated[int, _limit("Further tries of a request, each on another pair.")] = 2,
    breaker_failures: Annotated[int, _limit("Failures in a row that open a worker's circuit breaker.")] = 3,
    breaker_wait: Annotated[float, _limit("Seconds that it stays open at first; doubled, up to 60.")] = 5.0,
    max_body_mib: Annotated[int, _limit("Largest request, in MiB.")] = 32,
    connect_timeout: Annotated[float, _seconds("To open a connection to an engine.")] = 2.0,
    first_byte_timeout: Annotated[
        float, _seconds("Until an answer's first byte: the whole prefill.")
    ] = 600.0,
    idle_timeout: Annotated[float, _seconds("Between two reads of an answer.")] = 120.0,
    total_timeout: Annotated[
        float, _seconds("A whole request, waiting and further tries included.")
    ] = 3600.0,
    queue_timeout: Annotated[float, _seconds("Waiting for a worker with room.")] = 30.0,
    stall_timeout: Annotated[float, _seconds("A client that reads nothing.")] = 120.0,
    head_timeout: Annotated[float, _seconds("A request's head to arrive.")] = 15.0,
    body_timeout: Annotated[float, _seconds("A request's body to arrive.")] = 60.0,
    status_timeout: Annotated[float, _seconds("One health check.")] = 1.0,
    poll_interval: Annotated[float, _seconds("Between two health checks of a worker.")] = 0.5,
    drain_timeout: Annotated[float, _seconds("That requests may take after SIGTERM.")] = 30.0,
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
        found = None
        if kubernetes:
            from plait.router.discovery.kubernetes.settings import KubernetesSettings

            found = KubernetesSettings(
                prefill=kubernetes_prefill,
                decode=kubernetes_decode,
                instance=kubernetes_instance,
                namespace=kubernetes_namespace,
            )
        config = RouterConfig(
            prefill=[PrefillTarget.parse(text) for text in prefill],
            decode=decode,
            workers_file=workers_file,
            kubernetes=found,
            policy=policy,
            decode_policy=decode_policy,
            sticky_header=sticky_header,
            bound=bound,
            engine_api_key=engine_api_key,
            engine_ca=engine_ca,
            engine_insecure=engine_insecure,
            host=host,
            port=port,
            admin_host=admin_host,
            admin_port=admin_port,
            processes=processes,
            api_keys=api_keys,
            admin_api_key=admin_api_key,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            otlp_endpoint=otlp_endpoint,
            otlp_sample=otlp_sample,
            worker_limit=worker_limit,
            queue_limit=queue_limit,
            retries=retries,
            breaker_failures=breaker_failures,
            breaker_wait=breaker_wait,
            max_body_bytes=max_body_mib << 20,
            poll_interval=poll_interval,
            deadlines=Deadlines(
                connect=connect_timeout,
                first_byte=first_byte_timeout,
                idle=idle_timeout,
                total=total_timeout,
                queue=queue_timeout,
                client_stall=stall_timeout,
                head=head_timeout,
                body=body_timeout,
                status=status_timeout,
                drain=drain_timeout,
            ),
        )
        serve(config)
    except ConfigError as error:
        typer.echo(f"plait router: {error}", err=True)
        raise typer.Exit(2) from error
