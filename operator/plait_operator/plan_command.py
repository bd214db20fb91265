"""`plait plan FILE`: what the operator would do for a manifest, without a cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jsonpatch
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from plait.contract.shape import ModelShape
from plait.contract.violation import ContractError, Violation
from plait_operator import names
from plait_operator.actions import Action, Apply, Delete, Plan, SetFinalizer, WriteStatus
from plait_operator.admission.defaults import defaults
from plait_operator.api.resource import SharedKVDeployment
from plait_operator.apply.kinds import CHILDREN
from plait_operator.children.context import Release
from plait_operator.children.inspect import inspected_map
from plait_operator.manifests import KIND, Manifests, Written, read_manifests
from plait_operator.observed import Manifest, Observed, Ref
from plait_operator.plan.plan import make_plan
from plait_operator.validate import EXPERIMENTAL, read, warnings
from plait_operator.validate.form import Form

Output = Literal["table", "json", "yaml"]

_WIDE = 1000
"""Characters a line in a pipe."""


class _Plain(yaml.SafeDumper):
    """Writes what objects share in each place, where PyYAML would write an anchor and aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


class PlanError(ValueError):
    """A file that holds nothing to plan for; says which file, and what to write."""


class Told(NamedTuple):
    """One deployment: what is wrong with it, or what would be done."""

    name: str
    violations: list[Violation]
    warnings: list[str]
    plan: Plan
    status: Manifest


def run_plan(path: Path, *, form: Output, config: Path | None, apis: frozenset[str], release: Release) -> int:
    """Print the plan of every SharedKVDeployment in `path` ("-": standard input).

    `config`: the model's config.json, for a spec that names neither family nor shape. Exit status: 0, or 1
    when a manifest is refused or its kind misspelt. Raises PlanError for what is no manifest, and for names
    of features and kinds that are none.
    """
    shape = None if config is None else _config(config)
    _known_names("--experimental", release.experimental, EXPERIMENTAL)
    _known_names("--api", apis, {kind.kind for kind in CHILDREN if kind.optional})
    found = manifests_of(path)
    told = [_told(each, shape, apis=apis, release=release) for each in found.deployments]
    if form == "json":
        print(json.dumps([_json(each) for each in told], indent=2))
    elif form == "yaml":
        manifests = [one.manifest for each in told for one in each.plan.actions if isinstance(one, Apply)]
        print(yaml.dump_all(manifests, Dumper=_Plain, sort_keys=False), end="")
        _to_stderr(told)
    else:
        for each in told:
            _print(each, _console(), config_known=config is not None)
    for skipped in found.skipped:
        print(f"skipped: {skipped}", file=sys.stderr)
    refused = any(each.violations for each in told) or any(each.meant for each in found.skipped)
    return 1 if refused else 0


def manifests_of(path: Path) -> Manifests:
    """The manifests of a file. Raises PlanError when no SharedKVDeployment is in it, or no YAML."""
    name = "standard input" if str(path) == "-" else str(path)
    try:
        found = read_manifests(sys.stdin.read() if str(path) == "-" else path.read_text())
    except OSError as error:
        raise PlanError(f"{name} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise PlanError(f"{name} is no YAML: {' '.join(str(error).split())}") from None
    if not found.deployments:
        held = ", ".join(sorted({each.kind for each in found.skipped})) or "nothing"
        hint = f"; did you mean {KIND}?" if any(each.meant for each in found.skipped) else ""
        raise PlanError(f"{name} holds no {KIND} (it holds: {held}{hint})")
    return found


def _known_names(option: str, given: frozenset[str], known: Iterable[str]) -> None:
    """Raises PlanError for a name that means nothing, and would change nothing without a word."""
    for name in sorted(given.difference(known)):
        raise PlanError(f"{option}: {name!r} is none of {', '.join(sorted(known))}")


def _told(
    written: Written, config: Mapping[str, Any] | None, *, apis: frozenset[str], release: Release
) -> Told:
    # As admission does, which fills in before it checks.
    body: Manifest = jsonpatch.apply_patch(written.body, defaults(written.body))
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    # Where the API server would fill in its own.
    filled = {"namespace": "default", "uid": "", "generation": 1, **metadata}
    body = {**body, "metadata": filled} if metadata else body
    shape = None if config is None else ModelShape.from_config(config, source="config.json")
    deployment, found = read(body, shape=shape, experimental=release.experimental)
    form = Form(None, written.faults)
    violations = [*written.faults, *(each for each in found if not form.hides(each.field))]
    name = f"{filled['namespace']}/{metadata.get('name', '')}"
    if deployment is None or violations:
        return Told(name, violations, [], Plan(()), {})
    known = {} if config is None else _known(deployment, config)
    observed = Observed(children=known, apis=apis, now=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    plan = make_plan(deployment, observed, release)
    status = next((one.status for one in plan.actions if isinstance(one, WriteStatus) and not one.role), {})
    return Told(name, [], warnings(deployment), plan, status)


def _known(deployment: SharedKVDeployment, config: Mapping[str, Any]) -> dict[Ref, Manifest]:
    """As if the inspection had been made."""
    model = deployment.spec.model
    if model.family is not None or model.shape is not None:
        return {}
    kept = inspected_map(deployment, config)
    return {Ref.of(kept): kept}


def _config(path: Path) -> Mapping[str, Any]:
    try:
        told = json.loads(path.read_text())
        ModelShape.from_config(told, source=str(path))
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}") from None
    except ContractError as error:
        raise PlanError(f"{path}: {error}") from None
    except ValueError as error:
        raise PlanError(f"{path} is no JSON: {error}") from None
    config: Mapping[str, Any] = told
    return config


def _console() -> Console:
    """In a pipe as wide as its lines are: what reads them looks for whole names."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDE
    return console


def _table(*columns: str, **options: Any) -> Table:
    """A table that cuts nothing off: names are there to be copied."""
    table = Table(**options)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(told: Told, console: Console, *, config_known: bool) -> None:
    if told.violations:
        table = _table("field", "value", "why not", "instead", show_lines=True)
        for each in told.violations:
            value = "" if each.value is None else repr(each.value)
            table.add_row(*(Text(cell) for cell in (each.field, value, each.reason, each.fix)))
        console.print(table)
        console.print(Text(f"{told.name}: refused, {len(told.violations)} to correct", "bold red"))
        return
    table = _table("", "action", "object", "what", title=told.name, title_justify="left")
    for number, action in enumerate(told.plan.actions, 1):
        row = _row(action)
        if row is not None:
            table.add_row(str(number), *(Text(cell) for cell in row))
    console.print(table)
    contract, capacity = told.status.get("contract") or {}, told.status.get("capacity") or {}
    if contract.get("wire"):
        wire, group = names.hash_label(contract["wire"]), names.hash_label(contract["group"])
        console.print(Text(f"contract: wire {wire}, group {group}"))
    elif not config_known:
        note = "The model's shape is not known yet: with --config FILE (its config.json) engines are planned."
        console.print(Text(note, "yellow"))
    if capacity:
        words = (
            "capacity of a prefill group, {source}: {tokensShared} tokens shared, {tokensReplicated} "
            "replicated, {maxConcurrent} requests of {maxContext} tokens at once"
        )
        console.print(Text(words.format(**capacity)))
    for warning in told.warnings:
        console.print(Text(f"warning: {warning}", "yellow"))


def _row(action: Action) -> tuple[str, str, str] | None:
    match action:
        case Apply(manifest=manifest):
            return "apply", f"{manifest['kind']}/{manifest['metadata']['name']}", _what(manifest)
        case Delete(ref=ref, why=why):
            return "delete", f"{ref.kind}/{ref.name}", why
        case SetFinalizer():
            return "finalizer", names.FINALIZER, "routers drain before engines go"
        case _:
            return None


def _what(manifest: Manifest) -> str:
    """The few words that tell one object from another."""
    spec = manifest.get("spec") or {}
    told = []
    if "replicas" in spec:
        told.append(f"{spec['replicas']} replicas")
    pod = (spec.get("template") or (spec.get("leaderWorkerTemplate") or {}).get("leaderTemplate") or {}).get(
        "spec"
    )
    if pod:
        main = pod["containers"][0]
        told.append(str(main["image"]))
        limits = (main.get("resources") or {}).get("limits") or {}
        told += [f"{count} {name}" for name, count in limits.items() if "/" in name]
    if manifest["kind"] == "Service":
        told.append(", ".join(f"{port['name']} {port['port']}" for port in spec.get("ports") or ()))
    labels = manifest["metadata"].get("labels") or {}
    if labels.get(names.WIRE_HASH):
        told.append(f"wire {labels[names.WIRE_HASH]}")
    return ", ".join(told)


def _to_stderr(told: list[Told]) -> None:
    for each in told:
        for violation in each.violations:
            print(f"{each.name}: {violation}", file=sys.stderr)
        for warning in each.warnings:
            print(f"{each.name}: warning: {warning}", file=sys.stderr)


def _json(told: Told) -> Manifest:
    actions = []
    for action in told.plan.actions:
        actions.append({"action": type(action).__name__, **_plain(action._asdict())})
    violations = [{**each._asdict(), "value": _printable(each.value)} for each in told.violations]
    return {
        "deployment": told.name,
        "ok": not told.violations,
        "violations": violations,
        "warnings": told.warnings,
        "actions": actions,
        "againSeconds": told.plan.again_s,
    }


def _plain(fields: Mapping[str, Any]) -> Manifest:
    return {
        key: value._asdict() if isinstance(value, tuple) and hasattr(value, "_asdict") else value
        for key, value in fields.items()
    }


def _printable(value: object) -> object:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
