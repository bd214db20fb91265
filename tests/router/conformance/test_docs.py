"""docs/router.md says what the router is: its options and their defaults, its routes, its metrics."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import typer.main
from tests.router.conformance.process import Router

from plait import cli
from plait.telemetry.metrics import ROUTER_METRICS, Kind, Metric

PAGE = (Path(__file__).parents[3] / "docs" / "router.md").read_text()
_SUFFIX = {Kind.COUNTER: "_total"}


def test_every_option_and_its_default() -> None:
    assert _rows("| option |") == [_option(each) for each in _options()]


def test_every_metric() -> None:
    assert _rows("| metric |") == [_metric(each) for each in ROUTER_METRICS]


def test_options_that_are_named_exist() -> None:
    named = set(re.findall(r"(?<![-\w])--[a-z][a-z-]+", PAGE))
    known = {name for each in _options() for name in each.opts} | {"--rate", "--burst"}
    assert named <= known


def test_every_route_stands_on_its_port(router: Router) -> None:
    told = set()
    for port, routes, _ in (row.strip("| ").split(" | ", 2) for row in _rows("| port |")):
        for route in re.findall(r"`([A-Z]+ /[^`?]*)", routes):
            told |= {(name, route) for name in (("clients", "admin") if port == "both" else (port,))}
    served = {
        (name, f"{method.upper()} {path}")
        for name, url in (("clients", router.url), ("admin", router.admin_url))
        for path, methods in _schema(url)["paths"].items()
        for method in methods
    }
    served |= {(name, "GET /openapi.json") for name in ("clients", "admin")}
    assert told == served


def _rows(head: str) -> list[str]:
    """Lines of the table whose head begins with `head`."""
    _, _, rest = PAGE.partition(head)
    assert rest, head
    lines = rest.split("\n")[2:]
    return lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]


def _options() -> list[Any]:
    group: Any = typer.main.get_command(cli.app)
    params = group.commands["router"].params
    return [each for each in params if each.name != "help"]


def _option(each: Any) -> str:
    name = each.opts[0]
    if each.is_flag:
        default = "on" if each.default else "off"
    elif each.default in (None, "", []):
        default = ""
    else:
        default = f"`{each.default:g}`" if isinstance(each.default, float) else f"`{each.default}`"
    value = f" {each.metavar}" if each.metavar else ""
    return f"| `{name}{value}` | {default} | {each.help} |"


def _metric(each: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in each.labels)
    return f"| `{each.name}{_SUFFIX.get(each.kind, '')}` | {each.kind} | {labels} | {each.help} |"


def _schema(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=20) as answer:
        schema = json.load(answer)
    assert isinstance(schema, dict)
    return schema
