"""`python -m plait_operator run | admission | crd`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from plait_operator.controller.certificates import Issuer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The operator of shared-KV serving stacks on Kubernetes.",
)

_LEVELS = ("debug", "info", "warning", "error")


@app.command()
def run(
    namespace: Annotated[str, typer.Option(help="Where the operator itself runs.")] = "plait-system",
    kubeconfig: Annotated[Path | None, typer.Option(help="Default: the pod's service account.")] = None,
    watch_namespace: Annotated[
        list[str] | None, typer.Option(help="Look after this namespace only; may be repeated.")
    ] = None,
    runtime_image: Annotated[str, typer.Option(help="Runtime where a deployment names none.")] = "",
    router_image: Annotated[str, typer.Option(help="Router where a deployment names none.")] = "",
    image_pull_policy: Annotated[str, typer.Option(help="Of these images.")] = "IfNotPresent",
    experimental: Annotated[
        list[str] | None, typer.Option(help="Let a feature through that no test has shown; may be repeated.")
    ] = None,
    lease_name: Annotated[str, typer.Option(help="Lease of the election.")] = "plait-operator",
    lease_seconds: Annotated[
        float, typer.Option(min=3.0, help="How long a silent leader stays one to the others.")
    ] = 30.0,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Threads that plan and apply.")] = 8,
    rate: Annotated[
        float, typer.Option(min=1.0, help="Writes a second at most, with bursts of twice as many.")
    ] = 100.0,
    health_host: Annotated[str, typer.Option(help="Address of probes and metrics.")] = "0.0.0.0",
    health_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of /healthz, /readyz and /metrics.")
    ] = 8081,
    resync_seconds: Annotated[
        float, typer.Option(min=1.0, help="Look at every deployment once in each such period.")
    ] = 300.0,
    monitoring_namespace: Annotated[
        str, typer.Option(help="Where Prometheus runs: network policies let it scrape.")
    ] = "",
    api_server_cidr: Annotated[
        list[str] | None,
        typer.Option(help="Addresses of the API server, for network policies; may be repeated."),
    ] = None,
    api_server_port: Annotated[
        list[int] | None,
        typer.Option(min=1, max=65535, help="Its ports, for network policies; may be repeated."),
    ] = None,
    admission_secret: Annotated[
        str,
        typer.Option(help="Secret of the webhook's certificate, to be kept valid (none: not ours to do)."),
    ] = "",
    admission_service: Annotated[str, typer.Option(help="Service of the webhook.")] = "",
    admission_configuration: Annotated[
        str, typer.Option(help="Name of both webhook configurations, whose CA bundle is kept right.")
    ] = "",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Watch the cluster and keep it as the deployments say, while this process leads."""
    _log(log_level)
    from plait_operator.apply.connection import ConnectionConfigError
    from plait_operator.children.context import Release
    from plait_operator.controller.operator import Operator, Options
    from plait_operator.plan.plan import make_plan

    default = Release()
    release = Release(
        runtime_image=runtime_image or default.runtime_image,
        router_image=router_image or default.router_image,
        image_pull_policy=image_pull_policy,
        namespace=namespace,
        experimental=_features(experimental),
        monitoring_namespace=monitoring_namespace or default.monitoring_namespace,
        api_server_cidrs=tuple(api_server_cidr or default.api_server_cidrs),
        api_server_ports=tuple(api_server_port or default.api_server_ports),
    )
    options = Options(
        release=release,
        kubeconfig=kubeconfig,
        namespaces=tuple(watch_namespace or ()),
        lease=lease_name,
        lease_s=lease_seconds,
        workers=workers,
        rate=rate,
        host=health_host,
        port=health_port,
        resync_s=resync_seconds,
        issuer=_issuer(namespace, admission_secret, admission_service, admission_configuration),
    )
    try:
        operator = Operator(options, planner=make_plan)
    except ConnectionConfigError as error:
        raise typer.BadParameter(str(error)) from None
    sys.exit(operator.run())


@app.command()
def admission(
    certificates: Annotated[Path, typer.Option(help="Folder of tls.crt and tls.key; it may fill up later.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the webhooks (TLS).")] = 8443,
    health_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of /healthz, /readyz and /metrics.")
    ] = 8081,
    host: Annotated[str, typer.Option(help="Address of both ports.")] = "0.0.0.0",
    experimental: Annotated[
        list[str] | None, typer.Option(help="Let a feature through that no test has shown; may be repeated.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve the admission webhooks until SIGTERM."""
    _log(log_level)
    from plait_operator.admission.serve import Options, run

    run(
        Options(
            certificates=certificates,
            port=port,
            health_port=health_port,
            host=host,
            experimental=_features(experimental),
        )
    )


@app.command()
def crd() -> None:
    """Print the definitions of the custom resources as YAML."""
    from plait_operator.api.crd import main as print_definitions

    print_definitions()


def main() -> None:
    """The command line."""
    app()


def _issuer(namespace: str, secret: str, service: str, configuration: str) -> Issuer | None:
    told = (secret, service, configuration)
    if not any(told):
        return None
    if not all(told):
        raise typer.BadParameter(
            "--admission-secret, --admission-service and --admission-configuration go together: "
            "give all or none"
        )
    from plait_operator.admission.certificates import bundle_of, ensure, names_of
    from plait_operator.controller.certificates import Issuer

    return Issuer(
        ensure=ensure,
        bundle_of=bundle_of,
        namespace=namespace,
        secret=secret,
        configuration=configuration,
        dns_names=names_of(service, namespace),
    )


def _features(names: list[str] | None) -> frozenset[str]:
    from plait_operator.validate import EXPERIMENTAL

    for name in names or ():
        if name not in EXPERIMENTAL:
            known = ", ".join(sorted(EXPERIMENTAL))
            raise typer.BadParameter(
                f"{name!r} is no feature: use one of {known}", param_hint="--experimental"
            )
    return frozenset(names or ())


def _log(level: str) -> None:
    if level not in _LEVELS:
        raise typer.BadParameter(
            f"{level!r} is no level: use one of {', '.join(_LEVELS)}", param_hint="--log-level"
        )
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Each request by name, which the metrics count as well.
    logging.getLogger("urllib3").setLevel(logging.INFO)
    # kopf tells of every event that it passes on, and of signals that are not its own to handle.
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
