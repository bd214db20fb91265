"""The engine arguments of one role of a stack, and where in the configuration each of them comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plait.contract.config import StackConfig
from plait.contract.layouts import Role
from plait.contract.validate.argv import field_of
from plait.contract.validate.engine_args import EngineArgs
from plait.contract.violation import Violation, nearest

SETTING_FIELDS = {
    "PLAIT_LAYOUT": "cache.layout",
    "PLAIT_SPLIT": "cache.split",
    "PLAIT_SCRATCH_TOKENS": "cache.scratchTokens",
}


@dataclass(frozen=True)
class Side:
    """One role's engine arguments, and where in the configuration each comes from.

    `args`: what the engine is given, by ServerArgs field. `written`: field -> key as the user wrote it.
    `derived`: field -> (path in the configuration, whether the user wrote it there, the value it gives).
    """

    path: str
    args: dict[str, Any]
    written: dict[str, str]
    derived: dict[str, tuple[str, bool, object]]

    def source(self, field: str) -> str:
        """The configuration's own path for a violation's field."""
        name = field.removeprefix(self.path + ".")
        if name == field:
            return SETTING_FIELDS.get(field, field)
        if name in self.written:
            return f"{self.path}.{self.written[name]}"
        return self.derived[name][0] if name in self.derived else field

    @classmethod
    def prefill(cls, config: StackConfig, table: EngineArgs, found: list[Violation]) -> Side:
        ranks = config.prefill.context_parallel
        size = ("prefill.contextParallel", ranks is not None, 1 if ranks is None else ranks)
        fixed = {
            "enable_prefill_cp": True,
            "cp_strategy": "interleave",
            "disable_overlap_schedule": True,
        }
        derived = {
            **_common(config, Role.PREFILL),
            **{name: ("prefill.contextParallel", False, value) for name, value in fixed.items()},
            "attn_cp_size": size,
            "tp_size": size,
        }
        return cls._of("prefill.args", config.prefill.args, derived, table, found)

    @classmethod
    def decode(cls, config: StackConfig, table: EngineArgs, found: list[Violation]) -> Side:
        derived = _common(config, Role.DECODE)
        return cls._of("decode.args", config.decode.args, derived, table, found)

    @classmethod
    def _of(
        cls,
        path: str,
        given: Mapping[str, Any],
        derived: dict[str, tuple[str, bool, object]],
        table: EngineArgs,
        found: list[Violation],
    ) -> Side:
        args = {field: value for field, (_, _, value) in derived.items()}
        written: dict[str, str] = {}
        for key, value in given.items():
            field = field_of(key, table)
            if field is None:
                close = nearest(key, table.fields)
                fix = f"did you mean {close}?" if close else "remove it"
                found.append(
                    Violation(f"{path}.{key}", value, f"sglang {table.version} has no such argument", fix)
                )
                continue
            if field in written and args[field] != value:
                reason = f"contradicts {path}.{written[field]} = {args[field]!r}, which is the same argument"
                found.append(Violation(f"{path}.{key}", value, reason, "keep one of the two"))
            source, stated, said = derived.get(field, ("", False, None))
            if stated and said != value:
                reason = f"contradicts {source} = {said!r}"
                found.append(Violation(f"{path}.{key}", value, reason, f"leave it to {source}"))
            args[field], written[field] = value, key
        return cls(path, args, written, derived)


def _common(config: StackConfig, role: Role) -> dict[str, tuple[str, bool, object]]:
    """Arguments that both roles take from the same place of the configuration."""
    model, cache = config.model, config.cache
    sources: dict[str, tuple[str, bool, object]] = {
        "page_size": ("cache.pageSize", "page_size" in cache.model_fields_set, cache.page_size),
        "kv_cache_dtype": ("cache.dtype", "dtype" in cache.model_fields_set, cache.dtype),
        "disaggregation_mode": (role.value, False, role.value),
        "disaggregation_transfer_backend": (
            "transfer.backend",
            "backend" in config.transfer.model_fields_set,
            config.transfer.backend,
        ),
    }
    if model.path is not None:
        sources["model_path"] = ("model.path", True, model.path)
    if model.context_length is not None:
        sources["context_length"] = ("model.contextLength", True, model.context_length)
    return sources
