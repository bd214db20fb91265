"""What a pod says in its termination message: the verdict of a preflight, and what an inspection found.

Kubernetes keeps 4,096 bytes of a termination message and cuts the rest, which would be no JSON any more:
both forms shorten their texts until they fit `MESSAGE_LIMIT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

VERDICT_VERSION = 1
MESSAGE_LIMIT = 4000
"""Bytes of UTF-8."""
_MOST = 16  # checks, or errors, in one message
_Form = TypeVar("_Form", "Verdict", "Inspected")


class _Told(BaseModel):
    # Read leniently: pods of a newer runtime run under an older operator during an upgrade.
    model_config = ConfigDict(extra="ignore", frozen=True)


class CheckResult(_Told):
    """One check. `value`: what was found; `reason`, `fix`: only where it failed, or why it was skipped.

    A skipped check is `ok`: it had nothing to say here.
    """

    name: str
    ok: bool
    skipped: bool = False
    value: str = ""
    reason: str = ""
    fix: str = ""


class Verdict(_Told):
    """Whether an engine may start in this pod, and every check that was made."""

    version: int = VERDICT_VERSION
    ok: bool
    checks: list[CheckResult] = Field(default_factory=list)

    @classmethod
    def of(cls, checks: Sequence[CheckResult]) -> Self:
        """The verdict of some checks; of none it is a refusal, for nothing was looked at."""
        return cls(ok=bool(checks) and all(check.ok for check in checks), checks=list(checks))

    @property
    def failed(self) -> list[CheckResult]:
        """The checks that say no."""
        return [check for check in self.checks if not check.ok]

    def message(self) -> str:
        """Compact JSON of at most MESSAGE_LIMIT bytes: long texts are cut, those of failed checks least.

        Of more than 16 checks the failed ones come first, and the rest is left out.
        """
        checks = self.checks if len(self.checks) <= _MOST else [*self.failed, *_passed(self.checks)][:_MOST]
        for limit in (MESSAGE_LIMIT, 1000, 600, 300, 200, 120, 60, 30, 0):
            short = [_shorter(check, min(limit, 200) if check.ok else limit) for check in checks]
            text = self.model_copy(update={"checks": short}).model_dump_json()
            if len(text.encode()) <= MESSAGE_LIMIT:
                break
        return text


class Trouble(_Told):
    """Why a model could not be inspected."""

    field: str = ""
    value: str = ""
    reason: str
    fix: str


class Inspected(_Told):
    """What a model's config.json says. `config`: the fields that `ModelShape` is made from, when `ok`."""

    version: int = VERDICT_VERSION
    ok: bool
    config: dict[str, Any] = Field(default_factory=dict)
    errors: list[Trouble] = Field(default_factory=list)

    def message(self) -> str:
        """Compact JSON of at most MESSAGE_LIMIT bytes. Raises ValueError when the config does not fit."""
        if self.ok:
            text = self.model_dump_json()
            if len(text.encode()) > MESSAGE_LIMIT:
                raise ValueError(f"takes {len(text.encode())} bytes, a message holds {MESSAGE_LIMIT}")
            return text
        for count, limit in ((_MOST, 400), (_MOST, 100), (8, 100), (4, 60)):
            short = [
                Trouble(**{name: cut(text, limit) for name, text in error.model_dump().items()})
                for error in self.errors[:count]
            ]
            text = self.model_copy(update={"errors": short}).model_dump_json()
            if len(text.encode()) <= MESSAGE_LIMIT:
                break
        return text


class UnreadableError(ValueError):
    """A termination message of another form: the container was killed, or something else wrote it."""


def read_verdict(message: str) -> Verdict:
    """The verdict in a termination message. Raises UnreadableError for anything else."""
    return _read(Verdict, message)


def read_inspected(message: str) -> Inspected:
    """The inspection in a termination message. Raises UnreadableError for anything else."""
    return _read(Inspected, message)


def cut(text: str, limit: int) -> str:
    """`text` on one line, with its middle left out where it is longer than `limit` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(line) <= limit:
        return line
    if limit < 8:
        return ""
    head = (limit - 1) * 2 // 3
    return f"{line[:head]}…{line[len(line) - (limit - 1 - head) :]}"


def _shorter(check: CheckResult, limit: int) -> CheckResult:
    texts = {name: cut(getattr(check, name), limit) for name in ("value", "reason", "fix")}
    return check.model_copy(update={"name": cut(check.name, 40), **texts})


def _passed(checks: Sequence[CheckResult]) -> list[CheckResult]:
    return [check for check in checks if check.ok]


def _read(model: type[_Form], message: str) -> _Form:
    if not message.strip():
        raise UnreadableError("the message is empty: the container was killed before it could say anything")
    try:
        return model.model_validate_json(message)
    except ValidationError as error:
        what = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'all'}: {e['msg']}" for e in error.errors())
        raise UnreadableError(
            f"not a {model.__name__.lower()}: {cut(what, 200)}: {cut(message, 300)}"
        ) from None
