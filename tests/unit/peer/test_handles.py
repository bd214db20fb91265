"""The meeting of ranks: all of them get everybody's descriptors, or none does and all say why."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.peer.ranks import open_fds

from plait.peer.errors import PeersCannotMapError
from plait.peer.folder import MeetingPlace
from plait.peer.handles import Meeting, meet
from plait.peer.terms import Member, Offer
from plait.peer.wire import connect, receive, send

Body = Callable[[int, Meeting], object]


@pytest.fixture
def folder() -> Iterator[Path]:
    # tmp_path of pytest may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="plait-") as made:
        yield Path(made) / "peers"


@pytest.fixture(autouse=True)
def _no_descriptor_is_lost() -> Iterator[None]:
    before = open_fds()
    yield
    assert open_fds() == before


def ranks_of(folder: Path, body: Body, *, ranks: int, timeout_s: float = 30.0) -> list[object]:
    """What `body` returned or raised on each rank; the ranks are threads here."""

    def one(rank: int) -> object:
        try:
            with meet(folder, me=Member("test", rank, ranks), timeout_s=timeout_s) as meeting:
                return body(rank, meeting)
        except Exception as error:
            return error

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(one, range(ranks)))


def same_reason(told: list[object]) -> str:
    assert [type(one) for one in told] == [PeersCannotMapError] * len(told), told
    assert len({str(one) for one in told}) == 1, told
    return str(told[0])


def go_through(rank: int, meeting: Meeting) -> list[tuple[int, int, object, bytes]]:
    fd = os.memfd_create("test")
    try:
        os.write(fd, f"of {rank}".encode())
        extra = (fd,) * (rank % 2)
        answers = meeting.exchange(Offer("digest", {"name": f"n{rank}"}, (fd, *extra)))
        meeting.commit()
        assert all(os.pread(answer.fds[-1], 9, 0) == os.pread(answer.fds[0], 9, 0) for answer in answers)
        return [(a.rank, len(a.fds), a.note["name"], os.pread(a.fds[0], 9, 0)) for a in answers]
    finally:
        os.close(fd)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_rank_gets_every_ranks_descriptors(folder: Path, ranks: int) -> None:
    expected = [(rank, 1 + rank % 2, f"n{rank}", f"of {rank}".encode()) for rank in range(ranks)]
    for _ in range(3):
        assert ranks_of(folder, go_through, ranks=ranks) == [expected] * ranks
    assert not list(folder.iterdir())


@pytest.mark.parametrize("bad", [1, 2])
def test_another_layout_is_refused_by_name(folder: Path, bad: int) -> None:
    def body(rank: int, meeting: Meeting) -> None:
        meeting.exchange(Offer(f"digest {rank == bad}", {}, ()))
        meeting.commit()

    assert f"rank {bad} (pid {os.getpid()}) lays" in same_reason(ranks_of(folder, body, ranks=3))


@pytest.mark.parametrize("bad", [0, 1, 3])
@pytest.mark.parametrize("error", [PeersCannotMapError("no device"), OSError("no device")])
@pytest.mark.parametrize("phase", ["before", "between"])
def test_a_rank_that_cannot_tells_all(folder: Path, bad: int, phase: str, error: Exception) -> None:
    def body(rank: int, meeting: Meeting) -> None:
        if rank == bad and phase == "before":
            raise error
        meeting.exchange(Offer("digest", {}, ()))
        if rank == bad:
            raise error
        meeting.commit()

    started = time.monotonic()
    reason = same_reason(ranks_of(folder, body, ranks=4))
    assert time.monotonic() - started < 15, "the reason came by a timeout"
    assert f"rank {bad} (pid {os.getpid()}): " in reason
    assert "no device" in reason


@pytest.mark.parametrize("bad", [0, 2])
def test_a_bug_stays_a_bug_on_its_own_rank(folder: Path, bad: int) -> None:
    def body(rank: int, meeting: Meeting) -> None:
        if rank == bad:
            raise KeyError("boo")
        meeting.exchange(Offer("digest", {}, ()))
        meeting.commit()

    told = ranks_of(folder, body, ranks=3)
    assert isinstance(told.pop(bad), KeyError)
    assert "KeyError: 'boo'" in same_reason(told)


def test_leaving_without_a_word_is_a_refusal(folder: Path) -> None:
    def body(rank: int, meeting: Meeting) -> None:
        meeting.exchange(Offer("digest", {}, ()))
        if rank == 1:
            return
        meeting.commit()

    assert "rank 1" in same_reason(ranks_of(folder, body, ranks=3))


def test_a_missing_rank_is_named(folder: Path) -> None:
    def body(rank: int, meeting: Meeting) -> None:
        if rank in (1, 3):
            time.sleep(4)
        meeting.exchange(Offer("digest", {}, ()))
        meeting.commit()

    told = ranks_of(folder, body, ranks=4, timeout_s=1.5)
    assert "rank 1, 3 did not come within 1.5 s" in same_reason(told[0::2])
    assert all(isinstance(one, PeersCannotMapError) for one in told)


def test_a_missing_host_is_named(folder: Path) -> None:
    with (
        pytest.raises(PeersCannotMapError, match="rank 0 did not open the meeting"),
        meet(folder, me=Member("test", 1, 2), timeout_s=0.3) as meeting,
    ):
        meeting.exchange(Offer("digest", {}, ()))


def test_a_rank_that_maps_too_long_is_named(folder: Path) -> None:
    def body(rank: int, meeting: Meeting) -> None:
        meeting.exchange(Offer("digest", {}, ()))
        if rank == 2:
            time.sleep(4)
        meeting.commit()

    told = ranks_of(folder, body, ranks=3, timeout_s=1.0)
    assert "rank 2 (pid" in same_reason(told)


def test_ranks_that_count_otherwise_are_refused(folder: Path) -> None:
    def one(rank: int) -> object:
        try:
            with meet(folder, me=Member("test", rank, 2 + rank), timeout_s=20) as meeting:
                meeting.exchange(Offer("digest", {}, ()))
        except PeersCannotMapError as error:
            return error
        return None

    with ThreadPoolExecutor(2) as threads:
        assert "one of 3 ranks" in same_reason(list(threads.map(one, range(2))))


def test_two_processes_of_one_rank_are_refused(folder: Path) -> None:
    def one(rank: int) -> object:
        try:
            with meet(folder, me=Member("test", rank, 3), timeout_s=3) as meeting:
                meeting.exchange(Offer("digest", {}, ()))
        except PeersCannotMapError as error:
            return error
        return None

    with ThreadPoolExecutor(3) as threads:
        assert "two processes are rank 1" in same_reason(list(threads.map(one, (0, 1, 1))))


def reached(folder: Path) -> socket.socket:
    """Connected to the meeting, whoever is asking."""
    deadline = time.monotonic() + 20
    while (sock := connect(str(MeetingPlace(folder, "test").socket), timeout_s=1)) is None:
        assert time.monotonic() < deadline, "nobody listens"
        time.sleep(0.005)
    return sock


def test_another_group_is_sent_away_and_does_not_disturb(folder: Path) -> None:
    answers: list[str] = []

    def stranger() -> None:
        with reached(folder) as sock:
            hello = {
                "version": 1,
                "group": "other",
                "rank": 1,
                "ranks": 2,
                "pid": 1,
                "digest": "",
                "note": {},
            }
            send(sock, {**hello, "refusal": None}, timeout_s=5)
            answers.append(receive(sock, timeout_s=20).said["refusal"])

    def noise() -> None:
        with reached(folder) as sock:
            sock.send(b"not json")

    def body(rank: int, meeting: Meeting) -> object:
        if rank == 1:
            others = [threading.Thread(target=work) for work in (stranger, noise)]
            for thread in others:
                thread.start()
            for thread in others:
                thread.join()
        return go_through(rank, meeting)

    told = ranks_of(folder, body, ranks=2)
    assert all(isinstance(one, list) for one in told), told
    assert "group 'test', not of 'other'" in answers[0]


def test_the_socket_of_a_crashed_run_is_replaced(folder: Path) -> None:
    place = MeetingPlace(folder, "test")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(place.socket))
    assert place.socket.exists()
    assert all(isinstance(one, list) for one in ranks_of(folder, go_through, ranks=2))


def test_a_living_rank_0_is_not_robbed(folder: Path) -> None:
    def second() -> None:
        with meet(folder, me=Member("test", 0, 2), timeout_s=0.5):
            pass

    def body(rank: int, meeting: Meeting) -> object:
        if rank == 0:
            with pytest.raises(PeersCannotMapError, match="another process is rank 0"):
                second()
        return go_through(rank, meeting)

    assert all(isinstance(one, list) for one in ranks_of(folder, body, ranks=2))


def test_a_folder_that_others_can_enter_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(0o750)
    with (
        pytest.raises(PeersCannotMapError, match="mode 0750"),
        meet(folder, me=Member("test", 0, 2), timeout_s=1),
    ):
        pass
    folder.chmod(0o700)
    folder.rename(folder.with_name("real"))
    folder.symlink_to(folder.with_name("real"))
    with (
        pytest.raises(PeersCannotMapError, match="is not a folder"),
        meet(folder, me=Member("test", 0, 2), timeout_s=1),
    ):
        pass


def test_the_folder_is_made_private(folder: Path) -> None:
    umask = os.umask(0)
    try:
        MeetingPlace(folder, "test")
    finally:
        os.umask(umask)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_path_that_no_socket_can_have_is_refused(folder: Path) -> None:
    exact = folder / ("x" * (107 - len(str(folder)) - 1 - 1 - len("0123456789ab.sock")))
    told = ranks_of(exact, go_through, ranks=2)
    assert all(isinstance(one, list) for one in told), told
    reason = same_reason(ranks_of(Path(f"{exact}x"), go_through, ranks=2))
    assert "108 bytes, the system takes 107" in reason


@pytest.mark.parametrize("elsewhere", [0, 1])
def test_a_rank_on_another_host_is_named_at_once(folder: Path, elsewhere: int) -> None:
    place = MeetingPlace(folder, "test")
    place.leave_note(elsewhere)
    next(folder.glob("*.host")).write_text("another-boot")
    here = 1 - elsewhere
    started = time.monotonic()
    with (
        pytest.raises(PeersCannotMapError, match=f"rank {elsewhere} is on another host"),
        meet(folder, me=Member("test", here, 2), timeout_s=30) as meeting,
    ):
        meeting.exchange(Offer("digest", {}, ()))
    assert time.monotonic() - started < 15


def test_a_note_of_an_earlier_boot_is_not_believed(folder: Path) -> None:
    place = MeetingPlace(folder, "test")
    place.leave_note(1)
    note = next(folder.glob("*.host"))
    note.write_text("another-boot")
    os.utime(note, (time.time() - 3600, time.time() - 3600))
    assert not place.on_another_host(1, since=time.time() - 60)
    assert place.on_another_host(1, since=time.time() - 7200)
