"""Which workers there are to be: the source's, changed by the admin API, and handed on whole."""

from __future__ import annotations

import orjson
import pytest

from plait.router.directory import Desired, Directory, decode, encode
from plait.router.discovery.target import Target
from plait.router.errors import RouterError

P = Target.prefill("http://p:1", bootstrap_port=8998)
D1 = Target.decode("http://d:1")
D2 = Target.decode("http://d:2")


class Bench:
    """A directory, and all that it has handed on."""

    def __init__(self, *found: Target) -> None:
        self.applied: list[Desired] = []
        self.directory = Directory(self.applied.append)
        if found:
            self.directory.discovered(found)

    @property
    def last(self) -> Desired:
        return self.applied[-1]

    @property
    def urls(self) -> list[str]:
        return [t.url for t in self.last.targets]

    def refused(self, change: str, *args: object, **more: object) -> RouterError:
        """The error of a change, which leaves all as it was."""
        before = len(self.applied), self.directory.desired
        with pytest.raises(RouterError) as caught:
            getattr(self.directory, change)(*args, **more)
        assert (len(self.applied), self.directory.desired) == before
        return caught.value


def test_lists_of_the_source_are_handed_on() -> None:
    it = Bench(P, D1)
    assert it.last == Desired((P, D1))
    it.directory.discovered((P,))
    assert it.last == it.directory.desired == Desired((P,))
    assert it.directory.source_of(P.url) == "source"


def test_added_worker_stays_whatever_the_source_says() -> None:
    it = Bench(P)
    it.directory.add(D1)
    assert it.last == Desired((P, D1))
    assert it.directory.source_of(D1.url) == "admin"
    it.directory.discovered((P, D2))
    assert it.urls == [P.url, D2.url, D1.url]
    it.directory.discovered(())
    assert it.last == Desired((D1,))


def test_added_worker_that_the_source_finds_too_is_one() -> None:
    it = Bench(P)
    it.directory.add(D1)
    it.directory.discovered((P, D1))
    assert it.last == Desired((P, D1))
    # Also where the source knows more of it: what the admin said holds.
    it.directory.discovered((P, D1._replace(identity="pod-1")))
    assert it.last == Desired((P, D1))


def test_adding_what_is_there_changes_nothing() -> None:
    it = Bench(P, D1)
    it.directory.add(D1)
    assert it.last == Desired((P, D1))
    assert it.directory.source_of(D1.url) == "source"
    it.directory.add(D2)
    it.directory.add(D2)
    assert it.last == Desired((P, D1, D2))


@pytest.mark.parametrize(
    "other", [Target.decode(P.url), P._replace(bootstrap_port=9), P._replace(bootstrap_host="10.0.0.9")]
)
def test_address_of_another_worker_is_refused(other: Target) -> None:
    it = Bench(P, D1)
    error = it.refused("add", other)
    assert (error.status, error.code, error.param) == (409, "worker_exists", "url")
    assert P.url in error.message
    it.directory.remove(P.url)
    it.directory.add(other)
    assert it.last == Desired((D1, other))


def test_removed_worker_stays_away_while_the_source_lists_it() -> None:
    it = Bench(P, D1)
    it.directory.remove(D1.url)
    assert it.last == Desired((P,))
    it.directory.discovered((P, D1, D2))
    assert it.urls == [P.url, D2.url]
    # A word of the source about its state makes no other worker of it.
    it.directory.discovered((P, D1._replace(draining=True, reason="terminating"), D2))
    assert it.urls == [P.url, D2.url]
    # Gone and back again: another process, as far as anybody can tell.
    it.directory.discovered((P, D2))
    it.directory.discovered((P, D1, D2))
    assert it.urls == [P.url, D1.url, D2.url]


def test_another_process_at_a_removed_address_is_another_worker() -> None:
    it = Bench(P, D1._replace(identity="pod-1"))
    it.directory.remove(D1.url)
    it.directory.discovered((P, D1._replace(identity="pod-2")))
    assert it.urls == [P.url, D1.url]


def test_removed_worker_can_be_added_again() -> None:
    it = Bench(P, D1)
    it.directory.remove(D1.url)
    it.directory.add(D1)
    assert it.last == Desired((P, D1))


def test_added_worker_can_be_removed() -> None:
    it = Bench(P)
    it.directory.add(D1)
    it.directory.remove(D1.url)
    assert it.last == Desired((P,))
    it.directory.discovered((P, D1))
    assert it.urls == [P.url, D1.url], "the source was never told to leave it out"


def test_drained_worker_stays_listed() -> None:
    it = Bench(P, D1)
    it.directory.drain(D1.url)
    assert it.last == Desired((P, D1), (D1.url,))
    it.directory.drain(D1.url)
    assert it.last.withdrawn == (D1.url,)
    it.directory.discovered((P, D1, D2))
    assert it.last == Desired((P, D1, D2), (D1.url,))
    it.directory.drain(D1.url, drain=False)
    it.directory.drain(D1.url, drain=False)
    assert it.last == Desired((P, D1, D2))


@pytest.mark.parametrize("how", ["gone and back", "removed and added"])
def test_drain_ends_with_its_worker(how: str) -> None:
    it = Bench(P, D1)
    it.directory.drain(D1.url)
    if how == "gone and back":
        it.directory.discovered((P,))
        assert it.last == Desired((P,))
        it.directory.discovered((P, D1))
    else:
        it.directory.remove(D1.url)
        it.directory.add(D1)
    assert it.last == Desired((P, D1))


@pytest.mark.parametrize(("change", "more"), [("remove", {}), ("drain", {}), ("drain", {"drain": False})])
def test_unknown_worker_is_refused_and_the_known_are_named(change: str, more: dict[str, bool]) -> None:
    it = Bench(P, D1)
    error = it.refused(change, "http://x:1", **more)
    assert (error.status, error.code, error.param) == (404, "unknown_worker", "url")
    assert "http://x:1" in error.message
    assert f"{D1.url}, {P.url}" in error.message
    assert "listed: none" in Bench().refused(change, D1.url, **more).message
    it.directory.remove(D1.url)
    assert it.refused(change, D1.url, **more).status == 404


@pytest.mark.parametrize(
    "desired",
    [
        Desired(),
        Desired((P, D1), (D1.url,)),
        Desired(
            (P._replace(identity="pod-1", draining=True, reason="é"), Target.decode("http://[fd00::1]:3"))
        ),
    ],
)
def test_lists_travel_as_json(desired: Desired) -> None:
    got = decode(orjson.loads(orjson.dumps(encode(desired))))
    assert got == desired
    assert [t.side for t in got.targets] == [t.side for t in desired.targets]
    assert all(type(a.side) is type(b.side) for a, b in zip(got.targets, desired.targets, strict=True))
