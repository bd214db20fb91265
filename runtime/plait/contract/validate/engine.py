"""Whether one engine may start, by its role, settings, arguments and model: all violations at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plait.contract.capacity import pool_unit
from plait.contract.layouts import PAGE_SIZE, Layout, Role
from plait.contract.setting_kinds import PeerAccess
from plait.contract.settings import Settings
from plait.contract.shape import ModelShape
from plait.contract.validate.allowed import ALLOWED
from plait.contract.validate.constraints import (
    CONSTRAINTS,
    RESOLVED,
    RESOLVED_TOGETHER,
    TOGETHER,
    Constraint,
    Together,
)
from plait.contract.validate.engine_args import KNOWN_VERSIONS, EngineArgs, Option, engine_args
from plait.contract.validate.environment import validate_environment
from plait.contract.validate.features import feature_of
from plait.contract.validate.model import validate_model
from plait.contract.violation import Violation, nearest

RANKS = (2, 4, 8)
"""Sizes of a context-parallel group."""


def role_of(args: Mapping[str, object]) -> Role:
    """The role that an engine's `disaggregation_mode` gives it."""
    mode = args.get("disaggregation_mode", "null")
    return {"prefill": Role.PREFILL, "decode": Role.DECODE}.get(str(mode), Role.UNIFIED)


def validate_engine(
    *,
    role: Role | str,
    settings: Settings,
    args: Mapping[str, object],
    shape: ModelShape | None,
    engine_version: str | None,
    path: str = "args",
    environ: Mapping[str, str] | None = None,
) -> list[Violation]:
    """Every reason why this engine may not start; [] when it may.

    `args` are ServerArgs fields as the user wrote them (before the engine fills in its own choices); a
    missing field is at its default. `shape` is None when the model's config is not on this machine: then
    the model is checked when the engine has it. `engine_version` None means that no engine was found.
    `environ` adds the engine's own variables to what is checked. Fields of `args` are named `<path>.<field>`.
    With the layout off nothing is checked: stock stays stock.
    """
    role = Role(role)
    if settings.layout is Layout.OFF:
        return []
    found = [*_layout_for_role(settings, role), *_version(engine_version)]
    if environ is not None:
        found += validate_environment(environ)
    if role is Role.UNIFIED and not settings.layout.splits:
        return found
    # An engine that asks for a split layout hears all that such an engine needs, whatever mode it is in.
    rules = Role.DECODE if role is Role.DECODE else Role.PREFILL
    version = engine_version if engine_version in KNOWN_VERSIONS else KNOWN_VERSIONS[-1]
    found += _fields(args, table=engine_args(version), rules=rules, path=path, layout=settings.layout)
    found += _together(args, TOGETHER[rules], path=path)
    if rules is Role.PREFILL:
        found += _group(args, path=path)
    found += _scratch(args, settings=settings, path=path)
    found += _gather(settings)
    if shape is not None:
        found += validate_model(shape, path="model")
    return found


def validate_resolved(args: Mapping[str, object], *, path: str = "args") -> list[Violation]:
    """Violations in what the engine itself made of its arguments, once it has filled in its own choices."""
    alone = [
        _refusal(path, field, args.get(field), rule)
        for field, rule in RESOLVED.items()
        if not rule.allows(args.get(field))
    ]
    return alone + _together(args, RESOLVED_TOGETHER, path=path)


def _layout_for_role(settings: Settings, role: Role) -> Iterator[Violation]:
    layout = settings.layout
    if layout.splits and role is not Role.PREFILL:
        reason = f"a {role} engine decodes, and decode needs plain full pages"
        fix = (
            "plain" if role is Role.DECODE else "--disaggregation-mode prefill, with decode engines beside it"
        )
        yield Violation("PLAIT_LAYOUT", layout.value, reason, fix)
    if layout is Layout.PLAIN and role is Role.PREFILL:
        reason = "a prefill engine keeps its pages by owner"
        yield Violation("PLAIT_LAYOUT", layout.value, reason, "shared, replicated (the reference) or off")


def _version(version: str | None) -> Iterator[Violation]:
    if version not in KNOWN_VERSIONS:
        known = ", ".join(KNOWN_VERSIONS)
        reason = "no sglang is installed" if version is None else "Plait's hooks were not made for it"
        yield Violation("engine.version", version, reason, f"pip install sglang=={known}")


def _fields(
    args: Mapping[str, object], *, table: EngineArgs, rules: Role, path: str, layout: Layout
) -> Iterator[Violation]:
    allowed, constraints = ALLOWED[rules], CONSTRAINTS[rules]
    for field in args:
        if field not in table.fields:
            close = nearest(field, table.fields)
            fix = f"did you mean {close}?" if close else "remove it"
            reason = f"sglang {table.version} has no such argument"
            yield Violation(f"{path}.{field}", args[field], reason, fix)
    for field in table.fields:
        default = table.defaults.get(field)
        value = args.get(field, default)
        if field in _GROUP_FIELDS and rules is Role.PREFILL:
            continue
        if field in constraints:
            if not constraints[field].allows(value):
                yield _refusal(path, field, value, constraints[field])
        elif _same(value, default):
            continue
        elif field in allowed or field == "max_total_tokens":
            if wrong := _mistyped(value, table.by_field.get(field)):
                yield Violation(f"{path}.{field}", value, wrong, f"see the engine's help for {field}")
        else:
            yield _not_shown(path, field, value, default, layout)


def _together(args: Mapping[str, object], rules: Sequence[Together], *, path: str) -> list[Violation]:
    return [
        _refusal(path, each.field, args.get(each.field), each.rule)
        for each in rules
        if args.get(each.other) == each.at and not each.rule.allows(args.get(each.field))
    ]


_GROUP_FIELDS = ("tp_size", "attn_cp_size")


def _group(args: Mapping[str, object], *, path: str) -> Iterator[Violation]:
    """Context-parallel size, attention tensor parallelism, and a pool of whole stripes."""
    ranks, tensor = args.get("attn_cp_size", 1), args.get("tp_size", 1)
    sizes = " or ".join(map(str, RANKS))
    if type(ranks) is not int or ranks not in RANKS:
        reason = "one cache per group needs a group of " + sizes + " ranks"
        yield Violation(f"{path}.attn_cp_size", ranks, reason, f"{sizes}, and tp_size equal to it")
    if type(tensor) is not int or tensor != ranks:
        reason = "attention tensor parallelism (tp_size / attn_cp_size) is 1: all heads on every rank"
        fix = f"{ranks}, as attn_cp_size" if ranks in RANKS else "the same as attn_cp_size"
        yield Violation(f"{path}.tp_size", tensor, reason, fix)
    tokens = args.get("max_total_tokens")
    if type(ranks) is int and ranks in RANKS and type(tokens) is int:
        unit = pool_unit(ranks)
        if tokens < unit or tokens % unit:
            below = max(tokens // unit, 1) * unit
            reason = f"a pool on {ranks} ranks holds whole stripes of {ranks} pages of {PAGE_SIZE} tokens"
            yield Violation(f"{path}.max_total_tokens", tokens, reason, f"{below} or {below + unit}")


def _scratch(args: Mapping[str, object], *, settings: Settings, path: str) -> Iterator[Violation]:
    """One request always fits the dense scratch, so a length that is written down must."""
    length = args.get("context_length")
    if not settings.layout.splits or not settings.scratch_tokens or type(length) is not int:
        return
    if settings.scratch_tokens < length:
        least = -(-length // PAGE_SIZE) * PAGE_SIZE
        reason = f"the longest request ({path}.context_length = {length}) does not fit one scratch slot"
        fix = f"at least {least}, 0 (planned), or a shorter context length"
        yield Violation("PLAIT_SCRATCH_TOKENS", settings.scratch_tokens, reason, fix)


def _gather(settings: Settings) -> Iterator[Violation]:
    """A way of gathering that is forced must be one that there is. (A CPU has one: ranks map host memory.)"""
    way, access = settings.gather_path, settings.peer_access
    if settings.layout.splits and access is PeerAccess.OFF and way.needs_peers:
        reason = "it reads pools that the ranks map, and with PLAIT_PEER_ACCESS=off they map none"
        fix = "auto or collective; or PLAIT_PEER_ACCESS=auto"
        yield Violation("PLAIT_GATHER_PATH", way.value, reason, fix)


def _refusal(path: str, field: str, value: object, rule: Constraint) -> Violation:
    return Violation(f"{path}.{field}", value, rule.reason, rule.fix)


def _not_shown(path: str, field: str, value: object, default: object, layout: Layout) -> Violation:
    feature = feature_of(field)
    if feature:
        reason = f"{feature.name} is refused with Plait: {feature.reason}"
    else:
        reason = f"no test has shown this engine feature with Plait (layout {layout})"
    return Violation(f"{path}.{field}", value, reason, f"leave it at its default, {default!r}")


def _same(value: object, default: object) -> bool:
    # True == 1 and 1 == 1.0 in Python; an argument that was written as another type is not the default.
    return type(value) is type(default) and value == default


def _mistyped(value: object, option: Option | None) -> str | None:
    """Why `value` has the wrong type for its option, or None. None means: left to the engine."""
    if option is None or value is None:
        return None
    if option.form in ("true", "bool"):
        return None if isinstance(value, bool) else "must be true or false"
    if option.nargs in ("+", "*"):
        return None if isinstance(value, list | tuple) else "must be a list"
    if option.type in ("int", "human_int"):
        return None if type(value) is int else "must be a whole number"
    if option.type == "float":
        return None if type(value) in (int, float) else "must be a number"
    if option.type == "str":
        return None if isinstance(value, str) else "must be a text"
    return None
