"""What a stack consists of: options -> children, as data. Starts nothing, asks nothing of the machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from plait.engine.launch import EngineLaunch, decode_launch, prefill_launch
from plait.stack.child import ChildSpec
from plait.stack.probe import Probe

# What the engine logs when all its ranks serve; /health may answer before that on a CP server.
ENGINE_MARKER = "fired up"
# Only the router is for others; engines are reached through it, and have no business on the network.
ENGINE_HOST = "127.0.0.1"
# Shorter than the supervisor's grace, so that the router ends by itself.
_ROUTER_DRAIN_S = "5"


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """What the user asked for.

    `chunk`: tokens per prefill chunk; `max_total_tokens`: logical KV tokens of the prefill group;
    `decode_max_total_tokens`: of each decode engine (None: as many as its memory holds); `host`: what the
    router listens on (engines listen on loopback); `prefill_args`, `decode_args`: further engine flags;
    `folder`: of this run (logs, rank status); `devices`: CUDA devices to share out, in order (none on CPU).
    """

    model: Path
    cp: int
    decode: int
    layout: str
    split: str
    chunk: int
    context_length: int
    max_total_tokens: int | None
    decode_max_total_tokens: int | None
    transfer: str = "mooncake_tcp"
    cpu: bool = True
    host: str = "127.0.0.1"
    prefill_args: Sequence[str] = field(default=())
    decode_args: Sequence[str] = field(default=())
    folder: Path
    devices: Sequence[str] = ()


class StackPorts(NamedTuple):
    """Who listens where."""

    router: int
    prefill: int
    bootstrap: int
    decode: tuple[int, ...]


class StackPlan(NamedTuple):
    """The children, in the order in which they are shown; all start at once."""

    options: StackOptions
    ports: StackPorts
    children: tuple[ChildSpec, ...]

    @property
    def router_url(self) -> str:
        """Where the router answers on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.options.host, self.options.host)
        return f"http://[{host}]:{self.ports.router}" if ":" in host else f"http://{host}:{self.ports.router}"


def plan_stack(options: StackOptions, ports: StackPorts) -> StackPlan:
    """One prefill group, `options.decode` decode engines, and the router that pairs them."""
    if len(ports.decode) != options.decode:
        raise ValueError(f"ports.decode={ports.decode}: needs {options.decode} ports, one per decode engine")
    prefill = _engine(
        options,
        "prefill",
        prefill_launch(
            model=options.model,
            host=ENGINE_HOST,
            port=ports.prefill,
            bootstrap_port=ports.bootstrap,
            cp=options.cp,
            layout=options.layout,
            split=options.split,
            chunk=options.chunk,
            max_total_tokens=options.max_total_tokens,
            context_length=options.context_length,
            state_dir=options.folder / "prefill",
            transfer=options.transfer,
            cpu=options.cpu,
            extra=options.prefill_args,
            env=_visible(options, 0, options.cp),
        ),
        ports=(ports.prefill, ports.bootstrap),
        ranks=options.cp,
    )
    decode = [
        _engine(
            options,
            f"decode-{index}",
            decode_launch(
                model=options.model,
                host=ENGINE_HOST,
                port=port,
                index=index,
                max_total_tokens=options.decode_max_total_tokens,
                context_length=options.context_length,
                state_dir=options.folder / f"decode-{index}",
                transfer=options.transfer,
                cpu=options.cpu,
                extra=options.decode_args,
                env=_visible(options, options.cp + index, 1),
            ),
            ports=(port,),
            ranks=1,
        )
        for index, port in enumerate(ports.decode)
    ]
    plan = StackPlan(options, ports, (prefill, *decode))
    return plan._replace(children=(*plan.children, _router(plan)))


def _visible(options: StackOptions, first: int, count: int) -> dict[str, str]:
    """CUDA devices of one engine: no two engines share one."""
    if not options.devices:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(options.devices[first : first + count])}


def _engine(
    options: StackOptions, name: str, launch: EngineLaunch, *, ports: tuple[int, ...], ranks: int
) -> ChildSpec:
    status = f"http://{ENGINE_HOST}:{ports[0]}/plait/status"
    return ChildSpec(
        name=name,
        argv=tuple(launch.argv),
        env=launch.env,
        probe=Probe(status, ranks=ranks, marker=ENGINE_MARKER),
        log=options.folder / f"{name}.log",
        ports=ports,
    )


def _router(plan: StackPlan) -> ChildSpec:
    options, ports, at = plan.options, plan.ports, f"http://{ENGINE_HOST}"
    argv = [sys.executable, "-m", "plait.cli", "router", "--host", options.host, "--port", str(ports.router)]
    argv += ["--prefill", f"{at}:{ports.prefill},{ports.bootstrap}"]
    for port in ports.decode:
        argv += ["--decode", f"{at}:{port}"]
    argv += ["--drain-timeout", _ROUTER_DRAIN_S]
    return ChildSpec(
        name="router",
        argv=tuple(argv),
        probe=Probe(f"{plan.router_url}/ready"),
        log=options.folder / "router.log",
        ports=(ports.router,),
    )


def curl_line(plan: StackPlan) -> str:
    """A shell line that asks the running stack something and shows the answer as it streams."""
    body = (
        f'{{"model": "{plan.options.model.name}", "stream": true, "max_tokens": 32, '
        '"messages": [{"role": "user", "content": "Hello"}]}'
    )
    url = f"{plan.router_url}/v1/chat/completions"
    return f"curl -N {url} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
