"""An engine that begins nothing new for a while."""

from __future__ import annotations

import json
import time

from harness.engines import Engine


class Held:
    """An engine that begins nothing new while its file `hold` is there (PLAIT_DEBUG_CHECKS): for this block,
    or until `release_at` has returned."""

    def __init__(self, engine: Engine) -> None:
        assert engine.state is not None
        self._name = engine.name
        self._hold, self._told = engine.state / "hold", engine.state / "held.json"

    def __enter__(self) -> Held:
        self._told.unlink(missing_ok=True)
        self._hold.touch()
        return self

    def __exit__(self, *exc: object) -> None:
        self._hold.unlink(missing_ok=True)

    def wait_for(self, count: int, *, within_s: float = 120.0) -> None:
        """Return once `count` requests are ready to begin."""
        deadline = time.time() + within_s
        while self._waiting() != count:
            assert time.time() < deadline, f"{count} requests did not reach {self._name} in {within_s:g} s"
            time.sleep(0.05)

    def release_at(self, count: int) -> None:
        """Go on once `count` requests are ready to begin."""
        self.wait_for(count)
        self._hold.unlink(missing_ok=True)

    def _waiting(self) -> int:
        try:
            return int(json.loads(self._told.read_text()))
        except (OSError, ValueError):
            return 0
