"""A thread that tells, soon and by name, of a rank that was lost. It makes no CUDA call: the device may be
stopped, and a call that waits for it would never return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from plait.peer.barrier import Barrier
from plait.peer.processes import Peers

_AGAIN_S = 0.01


class PeerWatch:
    """Looks every `interval_s` at the barriers' faults and at the other ranks' processes.

    At the first loss it calls `on_fault(message)` once, from its own thread, and stops looking. What a rank
    process does then is end: its device may have been stopped at a meeting, and no batch can be finished
    without the lost rank. `close` it before an orderly end, in which the others' processes end too.
    """

    def __init__(
        self,
        *,
        peers: Peers,
        barriers: Sequence[Barrier],
        on_fault: Callable[[str], None],
        interval_s: float = 0.2,
    ) -> None:
        self._peers, self._barriers = peers, tuple(barriers)
        self._on_fault, self._interval = on_fault, interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plait-peer-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking. Returns when the thread has ended, unless it is this one. Can be called again."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            if (message := self.look()) is not None:
                self._on_fault(message)
                return

    def find(self, *, within_s: float) -> str | None:
        """What was lost, in words, as soon as it shows; None if nothing has by then.

        For a rank whose own work has failed: another's connections close a little before its process counts
        as ended.
        """
        deadline = time.monotonic() + within_s
        while (message := self.look()) is None and time.monotonic() < deadline:
            time.sleep(_AGAIN_S)
        return message

    def look(self) -> str | None:
        """What was lost, in words; None if nothing was."""
        ended = self._peers.ended()
        for barrier in self._barriers:
            fault = barrier.fault()
            if fault is not None:
                gone = ended.intersection(fault.missing)
                return (
                    f"{self._peers.names(fault.missing)} did not come to meeting {fault.meeting} of barrier "
                    f"{barrier.name!r} within {barrier.timeout_s:g} s"
                    + (f"; {self._peers.names(gone)} has ended" if gone else "")
                )
        if ended:
            return f"{self._peers.names(ended)} has ended"
        return None
