"""The stack configuration that `plait check FILE` reads: YAML or JSON, with the names of the custom resource.

Text choices stay text here, so that a bad one is told by the validator together with everything else.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from plait.contract.layouts import PAGE_SIZE, Layout, Split, TransferBackend
from plait.contract.versions import ENGINE_VERSIONS
from plait.contract.violation import ContractError, Violation, nearest
from plait.contract.yaml_lines import YamlLines


class _Section(BaseModel):
    # Strict: "64" is not 64, and a misspelt field is an error, not a default.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class ModelConfig(_Section):
    """Which model: `path` (folder with weights and config.json), or its `shape` inline (config.json's)."""

    path: str | None = None
    shape: dict[str, Any] | None = None
    context_length: int | None = Field(default=None, gt=0)


class CacheConfig(_Section):
    """How KV is kept. `scratch_tokens` 0: planned from the memory."""

    layout: str = Layout.SHARED.value
    split: str = Split.PAGE_INTERLEAVE.value
    page_size: int = PAGE_SIZE
    dtype: str = "auto"
    prefetch: bool = True
    scratch_tokens: int = 0


class PrefillConfig(_Section):
    """The prefill group. `args`: engine arguments by ServerArgs field or flag."""

    context_parallel: int | None = None
    args: dict[str, Any] = Field(default_factory=dict)


class DecodeConfig(_Section):
    """The decode engines, all alike."""

    replicas: int = Field(default=1, gt=0)
    args: dict[str, Any] = Field(default_factory=dict)


class TransferConfig(_Section):
    """How pages travel from prefill to decode."""

    backend: str = TransferBackend.MOONCAKE.value


class EngineConfig(_Section):
    """The stock engine."""

    version: str = ENGINE_VERSIONS[-1]


class StackConfig(_Section):
    """One stack: a model, its cache, a context-parallel prefill group and decode engines."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    cache: CacheConfig = Field(default_factory=CacheConfig)
    prefill: PrefillConfig = Field(default_factory=PrefillConfig)
    decode: DecodeConfig = Field(default_factory=DecodeConfig)
    transfer: TransferConfig = Field(default_factory=TransferConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)


def load_config(path: Path | str) -> StackConfig:
    """Read a stack configuration. Raises ContractError with every fault of form, and its line."""
    read = read_config(path)
    if read.malformed or read.repeated:
        raise ContractError([*read.repeated, *read.malformed])
    return read.config


class ReadConfig(NamedTuple):
    """A configuration without its malformed fields, what is wrong with those, and keys that stand twice."""

    config: StackConfig
    malformed: list[Violation]
    repeated: list[Violation]


def read_config(path: Path | str) -> ReadConfig:
    """Read what is well-formed, so that a caller can check the rest: the user hears of everything at once.

    A file that cannot be read at all raises ContractError.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        documents = list(yaml.safe_load_all(text))
    except OSError as error:
        reason = f"cannot be read: {error.strerror or type(error).__name__}"
        raise ContractError(
            [Violation(str(file), None, reason, "the path of a configuration file")]
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = "is neither YAML nor JSON: " + " ".join(str(error).split())
        raise ContractError([Violation(str(file), None, reason, "correct the file at that place")]) from None
    if any(isinstance(one, dict) and "apiVersion" in one and "kind" in one for one in documents):
        reason = "is a Kubernetes manifest, and no configuration of a stack"
        raise ContractError([Violation(str(file), None, reason, f"use `plait plan {file}`")])
    if len(documents) > 1:
        reason = f"holds {len(documents)} YAML documents, and a stack is one"
        raise ContractError([Violation(str(file), None, reason, "a file for each")])
    data = documents[0] if documents else None
    if not isinstance(data, dict):
        reason = "must be a mapping of " + ", ".join(StackConfig.model_fields)
        raise ContractError(
            [
                Violation(
                    str(file),
                    data,
                    reason,
                    "for example {model: {path: FOLDER}, prefill: {contextParallel: 2}}",
                )
            ]
        )
    lines = YamlLines(text)
    repeated = [
        Violation(where, None, f"line {line}: is written twice, and only one can hold", "keep one of the two")
        for where, line in lines.duplicates
    ]
    config, malformed = _sound_part(data, lines)
    return ReadConfig(config, malformed, repeated)


def _sound_part(data: dict[str, Any], lines: YamlLines) -> tuple[StackConfig, list[Violation]]:
    data = copy.deepcopy(data)
    bad: list[Violation] = []
    while True:
        try:
            return StackConfig.model_validate(data), bad
        except ValidationError as error:
            for fault in error.errors(include_url=False):
                where = _remove(data, fault["loc"])
                bad.append(_violation(where, fault["type"], fault["msg"], fault["input"], lines))


def _remove(data: dict[str, Any], location: tuple[int | str, ...]) -> tuple[str, ...]:
    """Take the deepest part of `location` that is there out of `data`; its path."""
    node: Any = data
    path: list[tuple[dict[Any, Any], int | str]] = []
    for step in location:
        if not isinstance(node, dict) or step not in node:
            break
        path.append((node, step))
        node = node[step]
    if not path:
        raise AssertionError(f"pydantic told of a field that is not there: {location}")
    parent, key = path[-1]
    del parent[key]
    return tuple(str(step) for _, step in path)


def _violation(where: tuple[str, ...], kind: str, text: str, value: object, lines: YamlLines) -> Violation:
    field = ".".join(where)
    line = lines.line(where)
    at = f"line {line}: " if line else ""
    if kind == "extra_forbidden":
        known = _names(where[:-1])
        close = nearest(where[-1], known)
        fix = f"did you mean {close}?" if close else f"one of {', '.join(known)}"
        return Violation(field, value, f"{at}no such field", fix)
    return Violation(field, value, at + text[:1].lower() + text[1:], "correct the value")


def _names(section: tuple[str, ...]) -> list[str]:
    """Names of the fields of a section, as they are written in a file."""
    model: type[BaseModel] = StackConfig
    for step in section:
        inner = next(f for n, f in model.model_fields.items() if step in (n, f.alias)).annotation
        if not isinstance(inner, type) or not issubclass(inner, BaseModel):
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]
