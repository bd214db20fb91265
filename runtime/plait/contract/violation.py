"""One broken rule of the contract, in the form that admission, start-up and `plait check` all print."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class Violation(NamedTuple):
    """One refusal: which field, what it holds, why that cannot be, and what to write instead.

    `field` is a path a user can find again (`prefill.args.page_size`, `PLAIT_SPLIT`,
    `config.json:hidden_size`); `value` is the offending value as the user wrote it (None: nothing was given).
    """

    field: str
    value: object
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field} = {self.value!r}: {self.reason}. Fix: {self.fix}"


class ContractError(ValueError):
    """Raised where code cannot go on: carries every violation found, not only the first."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations: tuple[Violation, ...] = tuple(violations)
        if not self.violations:
            raise AssertionError("a ContractError needs at least one violation")
        super().__init__("\n".join(str(v) for v in self.violations))

    def __reduce__(self) -> tuple[type[ContractError], tuple[tuple[Violation, ...]]]:
        # Exceptions are rebuilt from `args` (here the text) by default; ranks send these between processes.
        return type(self), (self.violations,)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` most likely meant, or None when nothing is close."""
    by_fold = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[found[0]] if found else None
