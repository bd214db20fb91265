"""Who is let in, at which rate, and how the files of keys may change under a running router."""

from __future__ import annotations

import logging
import os
import time
from hashlib import sha256
from pathlib import Path

import pytest

from plait.router import keys as module
from plait.router.config import ConfigError
from plait.router.keys import KeyFile, KeyFileError, RefusedError, over_rate, unauthorized
from plait.router.watched import Watch

A, B, C = ("plait-" + letter * 43 for letter in "abc")


def line(name: str, key: str, more: str = "") -> str:
    return f"{name} sha256:{sha256(key.encode()).hexdigest()} {more}\n"


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"router"), (b"authorization", b"Bearer " + key.encode()), (b"accept", b"*/*")]


def name_of(keys: KeyFile, headers: list[tuple[bytes, bytes]]) -> str | None:
    found = keys.check(headers)
    return found and found.name


def age(*paths: Path) -> None:
    """As if written a while ago: what was touched just now is read at the poll after."""
    for path in paths:
        about = path.stat()
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns - 1_000_000_000))


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(line("a", A) + line("b", B, "rate=2/s burst=3"))
    age(path)
    return path


@pytest.fixture
def keys(file: Path) -> KeyFile:
    return KeyFile([file])


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        (bearer(A), "a"),
        ([(b"authorization", b"bearer " + B.encode())], "b"),
        ([(b"authorization", b"BEARER   " + A.encode() + b" ")], "a"),
        ([(b"x-api-key", A.encode())], "a"),
        ([(b"authorization", b"Basic dTpw"), (b"x-api-key", A.encode())], "a"),
        ([(b"x-api-key", b"wrong"), *bearer(B)], "b"),
    ],
)
def test_a_known_key_is_let_in(keys: KeyFile, headers: list[tuple[bytes, bytes]], name: str) -> None:
    assert name_of(keys, headers) == name


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer    ")],
        [(b"authorization", A.encode())],
        [(b"authorization", b"Basic " + A.encode())],
        [(b"authorization", b"Bearer " + A[:-1].encode())],
        [(b"authorization", b"Bearer " + A.upper().encode())],
        [(b"authorization", b"Bearer " + sha256(A.encode()).hexdigest().encode())],
        [(b"authorization", b"Bearer sha256:" + sha256(A.encode()).hexdigest().encode())],
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"  ")],
        [(b"x-api-key", A.encode()), (b"x-api-key", A.encode())],
        [*bearer(A), *bearer(A)],
        [(b"authorization", b"Basic dTpw"), *bearer(A)],
        [*bearer("wrong"), (b"x-api-key", A.encode())],
        [(b"authorization", b"Bearer "), (b"x-api-key", A.encode())],
        [(b"api-key", A.encode())],
        [(b"authorization", b"Bearer " + b"\xff" * 60_000)],
    ],
)
def test_anything_else_is_not(keys: KeyFile, headers: list[tuple[bytes, bytes]]) -> None:
    assert keys.check(headers) is None
    with pytest.raises(RefusedError) as refused:
        keys.admit(headers)
    assert refused.value.status == 401


def test_who_is_not_let_in_is_told_in_openais_form() -> None:
    error = unauthorized()
    assert error.payload()["error"]["code"] == "invalid_api_key"
    assert error.payload()["error"]["type"] == "invalid_request_error"
    assert error.headers == ((b"www-authenticate", b"Bearer"),)


def test_a_key_over_its_rate_is_told_when_to_come_back(file: Path) -> None:
    clock = Clock()
    keys = KeyFile([file], clock=clock)
    assert [keys.admit(bearer(B)).name for _ in range(3)] == ["b", "b", "b"]
    with pytest.raises(RefusedError) as refused:
        keys.admit(bearer(B))
    assert refused.value.status == 429
    assert refused.value.code == "rate_limit_exceeded"
    assert (b"retry-after", b"1") in refused.value.head()
    assert keys.admit(bearer(A)).limiter is None, "the other key is not held back"
    clock.now += 0.5
    assert keys.admit(bearer(B)).name == "b"


def test_a_wait_is_told_in_whole_seconds_and_not_too_short() -> None:
    assert (b"retry-after", b"1") in over_rate("a", 0.01).head()
    assert (b"retry-after", b"13") in over_rate("a", 12.1).head()


def test_several_files_and_folders_are_one_set(tmp_path: Path, file: Path) -> None:
    secret = tmp_path / "secret"
    (secret / "..data").mkdir(parents=True)
    (secret / "team-c").write_text(f"sha256:{sha256(C.encode()).hexdigest()} rate=1/s\n")
    (secret / "more").write_text(line("d", "some-other-key"))
    keys = KeyFile([file, secret])
    assert keys.names == ["a", "b", "d", "team-c"]
    assert name_of(keys, bearer(C)) == "team-c"


def test_all_faults_of_all_files_are_told_at_the_start(tmp_path: Path) -> None:
    first, second, none = tmp_path / "first", tmp_path / "second", tmp_path / "none"
    first.write_text(line("a", A) + f"b {B}\n" + line("c", C, "rate=1/h"))
    second.write_text(line("a", B) + line("x", A))
    with pytest.raises(KeyFileError) as refused:
        KeyFile([first, second, none])
    faults = refused.value.faults
    assert isinstance(refused.value, ConfigError)
    assert [fault.split(": ")[0] for fault in faults] == [
        f"{first}:2",
        f"{first}:3",
        f"{second}:1",
        f"{second}:2",
        f"{none}",
    ]
    assert "also at" in faults[2]
    assert "also that of 'a'" in faults[3]
    assert "No such file" in faults[4]
    assert all(fault in str(refused.value) for fault in faults)
    assert B not in str(refused.value)


def test_no_key_at_all_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# none yet\n")
    for path in (tmp_path / "keys", tmp_path):
        with pytest.raises(KeyFileError, match="plait key NAME"):
            KeyFile([path])


def test_a_wrong_file_is_told_in_bounds(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("words of some book\n" * 50_000)
    with pytest.raises(KeyFileError, match="and 49900 more") as refused:
        KeyFile([tmp_path / "keys"])
    assert len(refused.value.faults) == 50_000
    assert len(str(refused.value)) < 30_000


def test_a_changed_file_is_taken_up_at_the_next_poll(
    file: Path, keys: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert not keys.poll()
    file.write_text(line("b", B) + line("c", C))
    age(file)
    assert keys.poll()
    assert [name_of(keys, bearer(key)) for key in (A, B, C)] == [None, "b", "c"]
    assert not keys.poll()
    assert [record.message for record in caplog.records] == ["API keys changed: 2, 1 of them new, 1 gone"]


def test_a_poll_within_a_second_is_enough_without_help(file: Path, keys: KeyFile) -> None:
    file.write_text(line("c", C))
    written = time.monotonic()
    while not keys.poll():
        assert time.monotonic() - written < 1.0
        time.sleep(0.01)
    assert name_of(keys, bearer(C)) == "c"


def test_a_secrets_volume_that_is_swapped_is_taken_up(tmp_path: Path) -> None:
    for version, key in (("..1", A), ("..2", B)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "team").write_text(f"sha256:{sha256(key.encode()).hexdigest()}")
        age(tmp_path / version / "team")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "team").symlink_to("..data/team")
    keys = KeyFile([tmp_path])
    assert [name_of(keys, bearer(key)) for key in (A, B)] == ["team", None]
    (tmp_path / "..fresh").symlink_to("..2")
    (tmp_path / "..fresh").rename(tmp_path / "..data")
    assert keys.poll()
    assert [name_of(keys, bearer(key)) for key in (A, B)] == [None, "team"]


@pytest.mark.parametrize("how", ["wrong line", "empty", "gone", "a folder", "binary"])
def test_a_bad_version_keeps_the_keys_and_is_told_once(
    file: Path, keys: KeyFile, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level(logging.INFO)
    good = file.read_text()
    if how == "wrong line":
        file.write_text(f"a {A}\n")
    elif how == "empty":
        file.write_text("")
    elif how == "binary":
        file.write_bytes(b"\xff\xfe\x00")
    else:
        file.unlink()
        if how == "a folder":
            file.mkdir()
    if how != "gone":
        age(file)
    assert [keys.poll() for _ in range(5)] == [False] * 5
    assert [name_of(keys, bearer(key)) for key in (A, B)] == ["a", "b"]
    [told] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "stay as they were (2)" in told.message
    assert str(file) in told.message
    assert A not in caplog.text
    assert keys.fault in told.message
    if how == "a folder":
        file.rmdir()
    file.write_text(good)
    age(file)
    assert not keys.poll(), "they are what they were"
    assert keys.fault == ""
    assert "can be used again" in caplog.text


def test_another_fault_is_told_again(file: Path, keys: KeyFile, caplog: pytest.LogCaptureFixture) -> None:
    for text in ("a", "a b c", "a b c"):
        file.write_text(text)
        age(file)
        keys.poll()
    assert len(caplog.records) == 2


def test_a_change_while_it_is_read_is_left_to_the_next_poll(
    file: Path, keys: KeyFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read(path: Path, *, limit: int) -> bytes:
        monkeypatch.undo()
        half = path.read_bytes()
        path.write_text(line("a", A) + line("c", C))
        age(path)
        return half

    file.write_text("a half of a li")
    age(file)
    monkeypatch.setattr(module, "read_file", read)
    assert not keys.poll()
    assert keys.poll()
    assert keys.names == ["a", "c"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_bucket_stays_as_full_as_it_was_while_its_key_does(file: Path) -> None:
    clock = Clock()
    keys = KeyFile([file], clock=clock)
    for _ in range(2):
        keys.admit(bearer(B))

    def level_after(text: str) -> float | None:
        file.write_text(text)
        age(file)
        assert keys.poll()
        found = keys.check(bearer(B))
        assert found is not None
        return found.limiter and found.limiter.level

    assert level_after(line("b", B, "rate=2/s burst=3") + line("c", C)) == 1
    assert level_after(line("renamed", B, "rate=2/s burst=3")) == 1
    assert level_after(line("b", B, "rate=100/s")) == 1, "a new rate is no new burst"
    assert level_after(line("b", B)) is None
    assert level_after(line("b", B, "rate=5/s")) == 5
    file.write_text(line("b", C, "rate=5/s"))
    age(file)
    assert keys.poll()
    fresh = keys.check(bearer(C))
    assert fresh is not None
    assert fresh.limiter is not None
    assert fresh.limiter.level == 5


def test_no_key_is_kept_anywhere(keys: KeyFile) -> None:
    keys.check(bearer(A))
    watched = keys._watch
    assert isinstance(watched, Watch)
    assert A not in repr((vars(keys), vars(watched), keys._keys, keys._lines, keys.check(bearer(A))))


def test_a_check_costs_little(file: Path, tmp_path: Path) -> None:
    """Well below 3 us on a free machine; the bound here is what a busy one keeps."""
    file.write_text("".join(line(f"k{i}", f"key-{i}", "rate=9/s") for i in range(1000)))
    keys = KeyFile([file])
    headers = [(b"host", b"r"), (b"accept", b"*/*"), *bearer("key-500"), (b"content-length", b"12")]
    check, best = keys.check, float("inf")
    for _ in range(5):
        start = time.thread_time()
        for _ in range(2000):
            check(headers)
        best = min(best, (time.thread_time() - start) / 2000)
    assert name_of(keys, headers) == "k500"
    assert best < 12e-6
