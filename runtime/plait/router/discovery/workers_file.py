"""The workers file: YAML or JSON, read strictly, with every fault told at once.

    workers:
      prefill:
        - url: http://10.0.0.1:30000
          bootstrapPort: 8998
          bootstrapHost: 10.0.0.1      # optional, the URL's host where it is left out
      decode:
        - url: http://10.0.0.2:30000

Heavy imports (pydantic, the YAML parser): load this module only where a file is read.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from plait.contract.violation import ContractError, Violation, nearest
from plait.contract.yaml_lines import YamlLines
from plait.router.config import ConfigError
from plait.router.discovery import address
from plait.router.discovery.target import Target, Targets

_EXAMPLE = (
    "{workers: {prefill: [{url: http://HOST:PORT, bootstrapPort: PORT}], decode: [{url: http://HOST:PORT}]}}"
)


# libyaml's parser where PyYAML was built with it: ten times faster, the same result.
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Lines(YamlLines):
    """Looks into lists too: their elements have their number for a key."""

    def _walk(self, node: yaml.Node, path: tuple[str, ...]) -> None:
        if not isinstance(node, yaml.SequenceNode):
            super()._walk(node, path)
            return
        for number, inner in enumerate(node.value):
            here = (*path, str(number))
            self._lines[here] = inner.start_mark.line + 1
            self._walk(inner, here)


class _Section(BaseModel):
    # Strict: "8998" is not 8998, and a misspelt field is an error, not a default.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)


class _Prefill(_Section):
    url: str
    bootstrap_port: int = Field(ge=1, le=65_535)
    bootstrap_host: str = Field(default="", min_length=1)


class _Decode(_Section):
    url: str


class _Workers(_Section):
    # Both have to stand there; an empty list is a plain statement, and further workers may come.
    prefill: list[_Prefill]
    decode: list[_Decode]


class _Document(_Section):
    workers: _Workers


def read_workers_file(path: Path | str) -> Targets:
    """Targets of the file. Raises ContractError with every fault of it: place, value, and what to write."""
    file = Path(path)
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            # A pipe would be waited for without end.
            raise ContractError([Violation(str(file), None, "is no regular file", "name a regular file")])
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        reason = f"cannot be read: {error.strerror or type(error).__name__}"
        raise ContractError([Violation(str(file), None, reason, "name a file that can be read")]) from None
    except UnicodeDecodeError as error:
        raise ContractError([Violation(str(file), None, f"is no UTF-8: {error}", "write it anew")]) from None
    return parse_workers(text, name=str(file))


def parse_workers(text: str, *, name: str) -> Targets:
    """Targets of a workers file's text; `name` is how errors call the file. Raises ContractError."""
    try:
        data = yaml.load(text, Loader=_LOADER)
        lines = _Lines(text)
    # ValueError: the parser's own for a date such as 2024-13-45; RecursionError: a list that holds itself.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = "is neither YAML nor JSON: " + " ".join(str(error).split())
        raise ContractError([Violation(name, None, reason, "correct the file at that place")]) from None
    if not isinstance(data, dict):
        # Not the value: where the wrong file was named, it may be a secret.
        reason = f"must be a mapping with the key workers, and is {type(data).__name__}"
        raise ContractError([Violation(name, None, reason, f"for example {_EXAMPLE}")])
    faults = [
        Violation(where, None, f"line {line}: is written twice, and only one can hold", "keep one of the two")
        for where, line in lines.duplicates
    ]
    document: _Document | None = None
    try:
        document = _Document.model_validate(data)
    except ValidationError as error:
        faults += [
            _violation(f["loc"], f["type"], f["msg"], f["input"], lines)
            for f in error.errors(include_url=False)
        ]
    # Addresses are looked at in the raw data too, so that their faults come together with those of form.
    faults += _address_faults(data, lines)
    if faults or document is None:
        raise ContractError(faults)
    return (
        *(
            Target.prefill(p.url, bootstrap_port=p.bootstrap_port, bootstrap_host=p.bootstrap_host)
            for p in document.workers.prefill
        ),
        *(Target.decode(d.url) for d in document.workers.decode),
    )


def _address_faults(data: dict[str, Any], lines: YamlLines) -> Iterator[Violation]:
    first_at: dict[str, str] = {}
    for place, entry in _entries(data):
        for key, check in (("url", address.engine_url), ("bootstrapHost", address.bootstrap_host)):
            text = entry.get(key)
            if not isinstance(text, str) or (key == "bootstrapHost" and not text):
                continue  # told as a fault of form
            where = (*place, key)
            field, at = _shown(where), _at(lines, where)
            try:
                clean = check(field, text)
            except ConfigError as error:
                yield Violation(field, error.value, f"{at}is no address that can be used", error.fix)
                continue
            if key == "url" and first_at.setdefault(clean, field) != field:
                yield Violation(
                    field, text, f"{at}is {first_at[clean]} too", "name every engine once, and as one role"
                )


def _entries(data: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    workers = data.get("workers")
    for side in ("prefill", "decode"):
        entries = workers.get(side) if isinstance(workers, dict) else None
        for number, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                yield ("workers", side, str(number)), entry


def _violation(
    location: tuple[int | str, ...], kind: str, message: str, value: object, lines: YamlLines
) -> Violation:
    where = tuple(str(step) for step in location)
    field, at = _shown(where), _at(lines, where)
    if kind == "extra_forbidden":
        known = _names(where[:-1])
        close = nearest(where[-1], known)
        fix = f"did you mean {close}?" if close else f"one of {', '.join(known)}"
        return Violation(field, value, f"{at}no such field", fix)
    if kind == "missing":
        # pydantic shows what it is missing from.
        return Violation(field, None, f"{at}is missing", f"add it: {_EXAMPLE}")
    return Violation(field, value, at + message[:1].lower() + message[1:], f"write it so: {_EXAMPLE}")


def _names(section: tuple[str, ...]) -> list[str]:
    """Names of the fields that may stand in the mapping at `section`."""
    model: type[_Section]
    if len(section) < 2:
        model = _Workers if section else _Document
    else:
        model = _Prefill if section[1] == "prefill" else _Decode
    return [field.alias or name for name, field in model.model_fields.items()]


def _shown(where: tuple[str, ...]) -> str:
    return "".join(f"[{s}]" if s.isdecimal() else f".{s}" for s in where).removeprefix(".")


def _at(lines: YamlLines, where: tuple[str, ...]) -> str:
    """The line of the field, or of what it is missing from."""
    for length in range(len(where), 0, -1):
        line = lines.line(where[:length])
        if line:
            return f"line {line}: "
    return ""
