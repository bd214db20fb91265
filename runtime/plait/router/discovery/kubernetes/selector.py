"""Label selectors of the two sides, and the one selector that covers both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from plait.router.config import ConfigError

ROLE_LABEL = "plait.dev/role"
INSTANCE_LABEL = "app.kubernetes.io/instance"

_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class Selector(NamedTuple):
    """Labels that a pod must have, all of them, sorted by key."""

    labels: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, field: str, text: str) -> Selector:
        """`KEY=VALUE[,KEY=VALUE]…` -> selector. Raises ConfigError."""
        labels: dict[str, str] = {}
        for term in text.split(","):
            key, equals, value = (part.strip() for part in term.partition("="))
            if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
                raise ConfigError(
                    field,
                    text,
                    f"write KEY=VALUE[,KEY=VALUE], for example {ROLE_LABEL}=prefill; not {term!r}",
                )
            if labels.setdefault(key, value) != value:
                raise ConfigError(field, text, f"no pod has two values of {key}: keep one")
        return cls(tuple(sorted(labels.items())))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.labels)

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.labels)


def common(prefill: Selector, decode: Selector) -> str:
    """The narrowest selector, as the API server takes it, of all pods that one of the two selects.

    Raises ConfigError where a pod could be selected by both: no key stands in both with different values.
    """
    ours, theirs = dict(prefill.labels), dict(decode.labels)
    shared = sorted(ours.keys() & theirs.keys())
    if all(ours[key] == theirs[key] for key in shared):
        raise ConfigError(
            "kubernetes prefill, decode",
            f"{prefill}; {decode}",
            f"tell the sides apart by different values of one label, for example {ROLE_LABEL}",
        )
    return ",".join(
        f"{key}={ours[key]}" if ours[key] == theirs[key] else f"{key} in ({ours[key]},{theirs[key]})"
        for key in shared
    )
