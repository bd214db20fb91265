"""Elections among candidates in this process, at a real API server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.harness.api import Api, Manifest

from plait_operator.apply.client import Client
from plait_operator.apply.errors import ApiError, FencedError
from plait_operator.controller.election import Election, Fence, Terms

TERMS = Terms.of(10)
LEASE = ("coordination.k8s.io/v1", "Lease", "leader")


class Candidate:
    """A candidate with a clock of its own."""

    def __init__(self, client: Client, namespace: str, identity: str) -> None:
        self.now = 1000.0
        self.fence = Fence(lambda: self.now)
        self.election = Election(
            client,
            namespace=namespace,
            name="leader",
            identity=identity,
            terms=TERMS,
            fence=self.fence,
            clock=lambda: self.now,
        )

    def step(self) -> bool:
        return self.election.step()

    def may_write(self) -> bool:
        try:
            self.fence.check()
        except FencedError:
            return False
        return True


@pytest.fixture
def candidate(client: Client, namespace: str) -> Callable[[str], Candidate]:
    return lambda identity: Candidate(client, namespace, identity)


def lease(api: Api, namespace: str) -> Manifest:
    found = api.get(*LEASE, namespace)
    assert found is not None
    return found


def test_one_leads_and_the_other_waits(candidate: Callable[[str], Candidate]) -> None:
    a, b = candidate("a"), candidate("b")
    assert a.step()
    assert not b.step()
    assert (a.may_write(), b.may_write()) == (True, False)


def test_the_right_to_write_ends_by_itself(candidate: Callable[[str], Candidate]) -> None:
    a = candidate("a")
    a.step()
    a.now += TERMS.deadline
    assert not a.may_write()
    assert a.step(), "nobody has taken it over"
    assert a.may_write()


def test_a_silent_leader_is_followed_after_a_term_and_not_before(
    candidate: Callable[[str], Candidate],
) -> None:
    a, b = candidate("a"), candidate("b")
    a.step()
    assert not b.step()
    b.now += TERMS.term - 0.1
    assert not b.step()
    b.now += 0.2
    assert b.step()
    assert not a.step(), "and the old one sees it"


def test_every_renewal_begins_the_term_anew(candidate: Callable[[str], Candidate]) -> None:
    a, b = candidate("a"), candidate("b")
    a.step()
    for _ in range(5):
        assert not b.step()
        b.now += TERMS.term * 0.9
        a.step()
    assert not b.step()


@pytest.mark.parametrize("skew", ["1999-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"])
def test_a_wrong_clock_of_the_leader_decides_nothing(
    candidate: Callable[[str], Candidate], api: Api, namespace: str, skew: str
) -> None:
    a, b = candidate("a"), candidate("b")
    a.step()
    api.patch(*LEASE, namespace, {"spec": {"renewTime": skew, "acquireTime": skew}})
    assert not b.step(), "a time long past does not end the term"
    b.now += TERMS.term + 0.1
    assert b.step(), "a time far ahead does not prolong it"


def test_a_lease_that_was_given_back_is_free_at_once(
    candidate: Callable[[str], Candidate], api: Api, namespace: str
) -> None:
    a, b = candidate("a"), candidate("b")
    a.step()
    a.election.won.set()
    a.election.stop()
    assert not a.may_write()
    assert lease(api, namespace)["spec"]["holderIdentity"] == ""
    assert b.step()
    assert lease(api, namespace)["spec"]["leaseTransitions"] == 1


def test_of_two_that_see_it_free_one_gets_it(
    candidate: Callable[[str], Candidate], api: Api, namespace: str, client: Client
) -> None:
    a, b = candidate("a"), candidate("b")
    a.step()
    a.election.won.set()
    a.election.stop()

    class Late(Client):
        """Somebody else is quicker between its look and its write."""

        def __init__(self) -> None:
            self.raced = False

        def read(self, path: str, *, kind: str) -> Manifest | None:
            found = client.read(path, kind=kind)
            if not self.raced:
                self.raced = True
                assert b.step()
            return found

        write = client.write  # type: ignore[assignment]

    c = Candidate(Late(), namespace, "c")
    with pytest.raises(ApiError) as refused:
        c.step()
    assert refused.value.conflict
    assert (b.may_write(), c.may_write()) == (True, False)


def test_a_deleted_lease_is_made_again(
    candidate: Callable[[str], Candidate], api: Api, namespace: str
) -> None:
    a = candidate("a")
    a.step()
    api.delete(*LEASE, namespace)
    assert a.step()
    assert lease(api, namespace)["spec"]["holderIdentity"] == "a"


def test_a_leader_that_ends_gives_its_lease_back(client: Client, api: Api, namespace: str) -> None:
    fence = Fence()
    election = Election(
        client, namespace=namespace, name="leader", identity="a", terms=Terms.of(60), fence=fence
    )
    election.start()
    assert election.won.wait(10)
    assert lease(api, namespace)["spec"]["holderIdentity"] == "a"
    election.stop()
    assert lease(api, namespace)["spec"]["holderIdentity"] == ""
    assert election.lost.is_set()
    assert fence.left_s == 0


def test_a_leader_whose_lease_was_taken_ends_at_once(client: Client, api: Api, namespace: str) -> None:
    fence = Fence()
    election = Election(
        client, namespace=namespace, name="leader", identity="a", terms=Terms.of(5), fence=fence
    )
    election.start()
    assert election.won.wait(10)
    # A renewal of its own may come between: again until the other one stands.
    for _ in range(20):
        api.patch(*LEASE, namespace, {"spec": {"holderIdentity": "b"}})
        if election.lost.wait(1):
            break
    assert election.lost.is_set()
    assert fence.left_s == 0
    election.stop()
    assert lease(api, namespace)["spec"]["holderIdentity"] == "b", "and takes nothing from the other"
