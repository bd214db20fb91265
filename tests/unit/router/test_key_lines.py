"""Lines of a key file, right and wrong."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.router.config import ConfigError
from plait.router.key_lines import KeyLine, check_name, digest_of, parse
from plait.router.rates import Rate

RAW = "plait-" + "Zq3-_" * 8 + "abc"
HEX = hashlib.sha256(RAW.encode()).hexdigest()
DIGEST = bytes.fromhex(HEX)


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (f"team-a sha256:{HEX}", KeyLine("team-a", DIGEST, None)),
        (f"  team-a\t sha256:{HEX.upper()}  ", KeyLine("team-a", DIGEST, None)),
        (f"a sha256:{HEX} rate=10/s", KeyLine("a", DIGEST, Rate(10.0, 10))),
        (f"a sha256:{HEX} burst=4 rate=30/min", KeyLine("a", DIGEST, Rate(0.5, 4))),
        (f"a sha256:{HEX} # rate=10/s", KeyLine("a", DIGEST, None)),
        (f"9.b_c-d sha256:{HEX}\r", KeyLine("9.b_c-d", DIGEST, None)),
        (f"\ufeffa sha256:{HEX}", KeyLine("a", DIGEST, None)),
    ],
)
def test_lines_are_read(line: str, read: KeyLine) -> None:
    assert parse(line.encode()) == ([(1, read)], [])


def test_comments_and_blank_lines_count_as_lines_only() -> None:
    text = f"# keys\n\n   \na sha256:{HEX}\n  # end\n"
    assert parse(text.encode()) == ([(4, KeyLine("a", DIGEST, None))], [])


def test_a_line_without_a_name_has_its_files() -> None:
    line = f"sha256:{HEX} rate=1/s".encode()
    assert parse(line, file_name="team-a").keys == [(1, KeyLine("team-a", DIGEST, Rate(1.0, 1)))]
    [(number, fault)] = parse(line).faults
    assert number == 1
    assert "name" in fault


WRONG = {
    "the key itself": (
        f"a {RAW}",
        "hash = '(49 characters, not shown)': write sha256: and the 64 hex digits",
    ),
    "the key as its hash": (f"a sha256:{RAW}", "hash = '(56 characters, not shown)'"),
    "the key alone": (RAW, "line = '(49 characters, not shown)': write NAME sha256:HEX"),
    "the key as name": (f"{RAW} sha256:{HEX}", "name = '(49 characters, not shown)': this looks like a key"),
    "the key last": (f"a sha256:{HEX} {RAW}", "option = '(49 characters, not shown)': known are rate"),
    "the key as rate": (f"a sha256:{HEX} rate={RAW}", "rate = '(49 characters, not shown)'"),
    "a hash cut off": (f"a sha256:{HEX[:-1]}", "64 hex digits"),
    "another hash": (f"a sha512:{HEX}", "64 hex digits"),
    "a strange name": (f"a/b sha256:{HEX}", "name = 'a/b': use up to 39 letters"),
    "a name out of order": (f"-a sha256:{HEX}", "name = '-a': use up to 39 letters"),
    "an empty key's hash": (f"a sha256:{hashlib.sha256(b'').hexdigest()}", "empty key"),
    "an unknown option": (f"a sha256:{HEX} limit=1/s", "option = '(9 characters, not shown)': known are"),
    "a rate twice": (f"a sha256:{HEX} rate=1/s rate=2/s", "options = 'rate=': give each option once"),
    "a burst alone": (f"a sha256:{HEX} burst=3", "burst = '3': give a rate too"),
    "a wrong rate": (f"a sha256:{HEX} rate=5/h", "rate = '5/h': write N/s or N/min"),
    "a wrong burst": (f"a sha256:{HEX} rate=5/s burst=0", "burst = '0': give a whole number"),
}


@pytest.mark.parametrize(("line", "told"), WRONG.values(), ids=WRONG)
def test_a_wrong_line_is_told_by_number_value_and_fix_and_never_its_key(line: str, told: str) -> None:
    parsed = parse(f"# first\n{line}\n".encode())
    assert parsed.keys == []
    [(number, fault)] = parsed.faults
    assert number == 2
    assert told in fault
    assert not any(RAW[i : i + 8] in fault for i in range(len(RAW) - 8))


def test_all_wrong_lines_are_told_and_the_right_ones_kept() -> None:
    parsed = parse(f"a\nb sha256:{HEX}\nc x\n".encode())
    assert [number for number, _ in parsed.faults] == [1, 3]
    assert [(number, key.name) for number, key in parsed.keys] == [(2, "b")]


def test_what_is_no_text_is_told_by_its_place() -> None:
    [(number, fault)] = parse(b"a\nb\nc\xff\n").faults
    assert number == 3
    assert fault.startswith("byte 5 is not UTF-8")


def test_a_line_ends_where_an_editor_says_it_does() -> None:
    line = f"a sha256:{HEX}\u2028b sha256:{HEX}"
    assert [number for number, _ in parse(line.encode()).faults] == [1]


def test_names_are_short_plain_and_no_keys() -> None:
    assert check_name("a" * 39) == "a" * 39
    for name in ("a" * 40, "", "a b", "é", "plait-0123456789012345678", "sk-0123456789012345678901"):
        with pytest.raises(ConfigError):
            check_name(name)


def test_the_hash_is_sha256_and_a_line_writes_it() -> None:
    assert digest_of(b"abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert str(KeyLine("a", DIGEST, None)) == f"a sha256:{HEX}"


_WORDS = st.sampled_from(
    ["a", "b", f"sha256:{HEX}", "sha256:", "rate=1/s", "rate=", "burst=2", "#", "\n", RAW]
)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.lists(_WORDS, max_size=20).map(lambda w: " ".join(w).encode())))
def test_whatever_is_written_gives_keys_or_faults_and_never_shows_a_key(content: bytes) -> None:
    parsed = parse(content)
    lines = content.count(b"\n") + 1
    numbers = [number for number, _ in (*parsed.keys, *parsed.faults)]
    assert all(1 <= number <= lines for number in numbers)
    assert len(set(numbers)) == len(numbers)
    assert not any(RAW in fault for _, fault in parsed.faults)
    assert all(check_name(key.name) and len(key.digest) == 32 for _, key in parsed.keys)
