"""One question by HTTP, to servers that answer in every way that HTTP has, and in some that it has not."""

from __future__ import annotations

import asyncio
import random

import pytest

from plait_operator.controller.asking import Answer, MuteError, TooLongError, ask

BODY = b'{"groups": []}'


def asked(
    *parts: bytes,
    hang: bool = False,
    longest: int = 1 << 16,
    timeout_s: float = 5.0,
    heard: list[bytes] | None = None,
) -> Answer:
    """What comes of a server that sends `parts` one by one, and then ends, or hangs."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if heard is not None:
            heard.append(request)
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.002)
            if hang:
                await reader.read()
        except OSError:
            return  # It has heard enough, and hung up.
        finally:
            writer.close()

    async def both() -> Answer:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            answer = await ask("127.0.0.1", port, "/api/v1/groups", timeout_s=timeout_s, longest=longest)
            server.close()
            return answer

    return asyncio.run(both())


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *lines, "")).encode()


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in [*parts, b""])


def test_an_answer_of_told_length_needs_no_end() -> None:
    heard: list[bytes] = []
    assert asked(head(f"content-LENGTH: {len(BODY)}") + BODY, hang=True, heard=heard) == Answer(200, BODY)
    assert heard[0].startswith(b"GET /api/v1/groups HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nConnection: close\r\n" in heard[0]


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    assert asked(head(), BODY[:4], BODY[4:]) == Answer(200, BODY)


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_an_answer_in_chunks(size: int) -> None:
    assert asked(head("Transfer-Encoding: chunked") + chunked(BODY, size), hang=True) == Answer(200, BODY)


def test_chunks_whose_body_looks_like_their_end() -> None:
    body = b"a\r\n\r\n" * 3
    sent = head("Transfer-Encoding: chunked") + chunked(body, 5)
    assert asked(*(sent[at : at + 1] for at in range(len(sent))), hang=True) == Answer(200, body)


@pytest.mark.parametrize("seed", range(10))
def test_however_it_is_cut(seed: int) -> None:
    told = random.Random(seed)
    body = told.randbytes(told.randint(0, 3000))
    sent = told.choice(
        [
            head(f"Content-Length: {len(body)}") + body,
            head("transfer-encoding: Chunked") + chunked(body, told.randint(1, 900)),
            head("Field: HTTP/1.1 200 OK") + body,
        ]
    )
    cuts = sorted(told.choices(range(len(sent)), k=5))
    parts = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert asked(*filter(None, parts)) == Answer(200, body)


def test_what_comes_before_the_answer_is_passed_over() -> None:
    assert asked(head(status="103 Early Hints"), head("Content-Length: 2") + b"{}", hang=True).body == b"{}"


def test_another_status_is_told() -> None:
    assert asked(head("Content-Length: 0", status="503 Service Unavailable"), hang=True).status == 503


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((), "cut off"),
        ((b"HTTP/1.1 200 OK\r\n",), "cut off"),
        ((head("Content-Length: 5"), b"1234"), "cut off"),
        ((head("Transfer-Encoding: chunked"), b"5\r\n123"), "cut off"),
        ((b"220 mail.example ESMTP\r\n\r\n",), "no HTTP"),
        ((b"\x15\x03\x01\x00\x02\x02\x0a\r\n\r\n",), "no HTTP"),
        ((head("Content-Length: -1"),), "no HTTP"),
        ((head("Content-Length: many"),), "no HTTP"),
        ((head("Transfer-Encoding: gzip, chunked"),), "no HTTP"),
        ((head("Transfer-Encoding: chunked"), b"zz\r\n\r\n"), "no HTTP"),
        ((head("Transfer-Encoding: chunked"), b"2\r\n{}0\r\n\r\n"), "no HTTP"),
        ((b"HTTP/1.1 200 OK\r\nno field\r\n\r\n",), "no HTTP"),
        ((b"x" * (80 << 10),), "no HTTP"),
    ],
)
def test_no_answer(parts: tuple[bytes, ...], text: str) -> None:
    with pytest.raises(MuteError) as error:
        asked(*parts)
    assert str(error.value) == text


@pytest.mark.parametrize(
    "parts",
    [
        (head("Content-Length: 101"), b"1"),
        (head(), b"1" * 101),
        (head("Transfer-Encoding: chunked"), chunked(b"1" * 101, 50)),
    ],
)
def test_too_long_an_answer(parts: tuple[bytes, ...]) -> None:
    with pytest.raises(TooLongError):
        asked(*parts, longest=100)


def test_silence_has_an_end() -> None:
    with pytest.raises(MuteError, match=r"^TimeoutError$"):
        asked(head("Content-Length: 9"), hang=True, timeout_s=0.1)


def test_nobody_there() -> None:
    with pytest.raises(MuteError, match=r"^ConnectionRefusedError$"):
        asyncio.run(ask("127.0.0.1", 1, "/", timeout_s=5.0, longest=100))
