"""One leader at a time, by a Lease; and the fence that keeps every other process from writing.

The clocks of two machines are never compared. A candidate takes the Lease over when it has itself watched the
record stay the same for the whole term; a leader counts its term from the moment before it asked for its last
renewal. The difference between term and deadline is the longest time a write may take: a write that was
begun under the fence has ended, at this end and at the server's, before another can lead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from plait_operator.apply.client import Client, Request
from plait_operator.apply.errors import ApiError, ApplyError, FencedError
from plait_operator.apply.kinds import LEASE
from plait_operator.observed import Manifest

log = logging.getLogger("plait.operator.election")


class Terms(NamedTuple):
    """Seconds. `term`: how long a silent leader stays one to others; `deadline`: to itself; `retry`: between
    two attempts; `write`: the longest that one try of a write may take."""

    term: float
    deadline: float
    retry: float
    write: float

    @classmethod
    def of(cls, term: float) -> Terms:
        """The usual shares of a term. Raises ValueError for one that is too short to work with."""
        if term < 3:
            raise ValueError(f"a term of {term} s: at least 3 are needed")
        # A Lease that was given back is to be found soon, however long the term.
        return cls(term, deadline=term * 0.6, retry=min(term * 0.12, 5.0), write=term * 0.3)


class _Seen(NamedTuple):
    """The record as it was last seen to change, and when that was by this machine's steady clock."""

    record: tuple[Any, ...]
    at: float


_FREE: Final = ""


def steady() -> float:
    """Seconds of a clock that nobody sets and that runs on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Fence:
    """Open while this process surely leads. `clock`: a steady one."""

    def __init__(self, clock: Callable[[], float] = steady) -> None:
        self._clock = clock
        self._until = float("-inf")

    def open_until(self, moment: float) -> None:
        """The right to write ends then."""
        self._until = moment

    def shut(self) -> None:
        """It ends now, and for good: a process that lost the lead does not lead again."""
        self._until = float("-inf")

    def check(self) -> None:
        """Raises FencedError."""
        if self._clock() >= self._until:
            raise FencedError("this process is not, or not surely, the leader: nothing was written")

    @property
    def left_s(self) -> float:
        """Seconds of right left."""
        return max(0.0, self._until - self._clock())


class Election:
    """Stands for election until it wins, then keeps the Lease; `lost` is set when that ends.

    `step` is one attempt; `run` makes them in a thread.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        terms: Terms,
        fence: Fence,
        clock: Callable[[], float] = steady,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._terms = terms
        self._fence = fence
        self._clock = clock
        self._seen: _Seen | None = None
        self._stop = threading.Event()
        self.won = threading.Event()
        self.lost = threading.Event()
        self.step_at = clock()
        """When the last attempt ended."""
        self._thread = threading.Thread(target=self._run, name="election", daemon=True)

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Give the Lease back, so that another need not wait for its end. No write follows."""
        # Before the thread ends, which marks the lead as lost however it was.
        led = self.won.is_set() and not self.lost.is_set()
        self._stop.set()
        self._fence.shut()
        if self._thread.ident is not None:
            self._thread.join(self._terms.write + 1)
        if not led:
            return
        try:
            lease = self._client.read(self._path(), kind=LEASE.kind)
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                # A second, not 0: the API server takes no term of 0.
                spec = lease["spec"] | {"holderIdentity": _FREE, "leaseDurationSeconds": 1}
                self._put(lease | {"spec": spec})
        except ApplyError as error:
            log.warning("the lease was not given back, it ends in %g s: %s", self._terms.term, error)

    def step(self) -> bool:
        """One attempt to get or keep the Lease; whether this process leads. Raises ApplyError."""
        asked = self._clock()
        lease = self._client.read(self._path(), kind=LEASE.kind)
        if lease is None:
            self._create()
        else:
            spec = lease.get("spec") or {}
            holder = spec.get("holderIdentity") or _FREE
            if holder not in (_FREE, self._identity) and not self._over(spec):
                return False
            self._put(lease | {"spec": self._spec(spec, holder=holder)})
        self._fence.open_until(asked + self._terms.deadline)
        return True

    def _over(self, spec: Manifest) -> bool:
        """Whether the holder has been silent for its whole term, as watched from here."""
        record = tuple(spec.get(f) for f in ("holderIdentity", "renewTime", "leaseTransitions"))
        now = self._clock()
        if self._seen is None or self._seen.record != record:
            self._seen = _Seen(record, now)
        # The holder's own term, should it have been started with another.
        term = float(spec.get("leaseDurationSeconds") or self._terms.term)
        return now - self._seen.at >= max(term, self._terms.term)

    def _create(self) -> None:
        body: Manifest = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec({}, holder=_FREE),
        }
        self._client.write(
            Request("POST", LEASE.path(self._namespace), LEASE.kind, "lease", body=body), fenced=False
        )

    def _put(self, lease: Manifest) -> None:
        """With its resource version: of two that see it free, one fails."""
        self._client.write(Request("PUT", self._path(), LEASE.kind, "lease", body=lease), fenced=False)

    def _spec(self, spec: Manifest, *, holder: str) -> Manifest:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        mine = holder == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._terms.term)),
            "acquireTime": spec.get("acquireTime", now) if mine else now,
            # For people to read; nobody here compares it with a clock.
            "renewTime": now,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (0 if mine or not spec else 1),
        }

    def _path(self) -> str:
        return LEASE.path(self._namespace, self._name)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._attempt()):
                pass
        finally:
            self._fence.shut()
            self.lost.set()

    def _attempt(self) -> float:
        """One attempt; seconds to the next. Sets `won`; ends the thread's loop when the lead is lost."""
        leading: bool | None = None
        try:
            leading = self.step()
        except ApplyError as error:
            raced = isinstance(error, ApiError) and error.conflict
            log.log(logging.INFO if raced else logging.WARNING, "lease %s: %s", self._name, error)
        except Exception:
            log.exception("lease %s: this is a fault of the operator", self._name)
        self.step_at = self._clock()
        if leading and not self.won.is_set():
            log.info("leading as %s", self._identity)
            self.won.set()
        # Another holds the Lease, or for too long nobody could say.
        if self.won.is_set() and (leading is False or self._fence.left_s <= 0):
            log.error("the lead is lost: no write follows")
            self._fence.shut()
            self._stop.set()
        return self._terms.retry
