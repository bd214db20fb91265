"""Whether a stack fits together: both roles' engines, and what prefill and decode must agree on."""

from __future__ import annotations

from pathlib import Path

from plait.contract.config import StackConfig, read_config
from plait.contract.layouts import Layout, Role
from plait.contract.settings import Settings
from plait.contract.shape import ModelShape
from plait.contract.validate.engine import validate_engine
from plait.contract.validate.engine_args import KNOWN_VERSIONS, engine_args
from plait.contract.validate.sides import SETTING_FIELDS, Side
from plait.contract.violation import ContractError, Violation

# Both engines read the prompt for themselves: what turns text into tokens must agree, or lengths differ.
_AGREED_ARGS = (
    "model_path",
    "revision",
    "tokenizer_path",
    "tokenizer_mode",
    "chat_template",
    "hf_chat_template_name",
    "completion_template",
    "default_chat_template_kwargs",
    "context_length",
    "page_size",
    "dtype",
    "kv_cache_dtype",
    "disaggregation_transfer_backend",
)


def validate_stack(config: StackConfig) -> list[Violation]:
    """Every reason why this stack may not start, by field path of the configuration; [] when it may.

    The model's shape is read from `model.shape`, or from `model.path` where that is on this machine.
    """
    found: list[Violation] = []
    shape = _shape(config, found)
    settings = _settings(config, found)
    version = config.engine.version
    table = engine_args(version if version in KNOWN_VERSIONS else KNOWN_VERSIONS[-1])
    sides = {
        Role.PREFILL: Side.prefill(config, table, found),
        Role.DECODE: Side.decode(config, table, found),
    }
    for role, side in sides.items():
        # A split layout that could not be read leaves the arguments to be checked as for the shared one.
        layout = settings.layout if role is Role.PREFILL else Layout.PLAIN
        told = validate_engine(
            role=role,
            settings=Settings(layout=layout, split=settings.split, scratch_tokens=settings.scratch_tokens),
            args=side.args,
            shape=shape,
            engine_version=version,
            path=side.path,
        )
        found += [v._replace(field=_model_source(config, side.source(v.field))) for v in told]
    found += _disagreements(sides[Role.PREFILL], sides[Role.DECODE])
    return _once(found)


def validate_file(path: Path | str) -> list[Violation]:
    """Violations of the configuration file at `path`: its form, and the contract of all that is well-formed.

    Raises nothing: a file that cannot be read is a violation too.
    """
    try:
        read = read_config(path)
    except ContractError as error:
        return list(error.violations)
    broken = [v.field for v in read.malformed]
    rest = [v for v in validate_stack(read.config) if not any(_within(v.field, field) for field in broken)]
    return read.repeated + read.malformed + rest


_LAYOUTS = tuple(layout.value for layout in Layout if layout.splits)


def _settings(config: StackConfig, found: list[Violation]) -> Settings:
    """The prefill group's settings; choices that cannot be read are told and left at the shared defaults."""
    cache = config.cache
    environ = {
        "PLAIT_LAYOUT": cache.layout,
        "PLAIT_SPLIT": cache.split,
        "PLAIT_SCRATCH_TOKENS": str(cache.scratch_tokens),
        "PLAIT_PREFETCH": str(int(cache.prefetch)),
    }
    if cache.layout not in _LAYOUTS:
        known = cache.layout in (Layout.OFF, Layout.PLAIN)
        reason = "a stack of Plait keeps its prefill pages by owner" if known else "no such layout"
        found.append(Violation("cache.layout", cache.layout, reason, "shared, or replicated (the reference)"))
        environ["PLAIT_LAYOUT"] = Layout.SHARED.value
    try:
        return Settings.from_env(environ)
    except ContractError as error:
        bad = {v.field for v in error.violations}
        found.extend(v._replace(field=SETTING_FIELDS[v.field]) for v in error.violations)
        sound = {name: text for name, text in environ.items() if name not in bad}
        return Settings.from_env({"PLAIT_LAYOUT": Layout.SHARED.value, **sound})


def _shape(config: StackConfig, found: list[Violation]) -> ModelShape | None:
    """The model's shape, inline or from its folder; None when neither can be had here."""
    model = config.model
    inline = on_disk = None
    if model.path is None and model.shape is None:
        found.append(Violation("model.path", None, "is missing", "the model's folder, or its shape inline"))
    try:
        if model.shape is not None:
            inline = ModelShape.from_config(model.shape, source="model.shape")
        if model.path is not None and Path(model.path).exists():
            on_disk = ModelShape.from_path(model.path)
    except ContractError as error:
        found.extend(
            v._replace(field=v.field.replace("model.shape:", "model.shape.")) for v in error.violations
        )
    if inline and on_disk and inline.digest() != on_disk.digest():
        reason = f"is not the shape of the model at model.path = {model.path!r}"
        found.append(Violation("model.shape", inline.architecture, reason, "keep one of the two"))
    return inline or on_disk


def _model_source(config: StackConfig, field: str) -> str:
    """Where the configuration says what a violation of `model.<config.json field>` is about."""
    name = field.removeprefix("model.")
    if name == field or name in ("path", "shape", "contextLength"):
        return field
    return f"model.shape.{name}" if config.model.shape is not None else f"model.path:config.json:{name}"


def _disagreements(prefill: Side, decode: Side) -> list[Violation]:
    found = []
    for field in _AGREED_ARGS:
        left, right = prefill.args.get(field), decode.args.get(field)
        if _plain(left) != _plain(right):
            reason = f"prefill and decode must agree: {prefill.source(f'{prefill.path}.{field}')} = {left!r}"
            fix = "write the same on both sides"
            found.append(Violation(decode.source(f"{decode.path}.{field}"), right, reason, fix))
    return found


def _plain(value: object) -> object:
    """One spelling for values that the engine takes as the same, and for a default that is written out."""
    same = {"bf16": "bfloat16", "float": "float32", "auto": None}
    return same.get(value, value) if isinstance(value, str) else value


def _within(field: str, section: str) -> bool:
    return field == section or field.startswith(section + ".")


def _once(found: list[Violation]) -> list[Violation]:
    """Both roles share a model and an engine: what is told for both is told once, in the first place."""
    kept: list[Violation] = []
    for violation in found:
        if violation not in kept:
            kept.append(violation)
    return kept
