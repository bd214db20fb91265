"""A budget for further tries: when much fails, trying everything again would only add load."""

from __future__ import annotations


class RetryBudget:
    """Each request earns a share of a try, each further try spends one.

    So tries beyond the first are at most `share` of the requests, and `reserve` beyond that in a row.
    """

    def __init__(self, *, share: float = 0.2, reserve: float = 20.0) -> None:
        self._share = share
        self._most = reserve
        self._left = reserve

    def earn(self) -> None:
        """A request came."""
        if self._left < self._most:
            self._left += self._share

    def spend(self) -> bool:
        """Whether a further try may be made; if so it is paid for."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
