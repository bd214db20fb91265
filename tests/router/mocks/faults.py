"""Every way in which an engine fails one request, by name. An act returns only where it has answered in full.

Phases: BEFORE headers of the answer, AFTER them and before its body, MID-way through the body, LATE (prefill
only: it has sent the cache, decode is streaming, and then it fails).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import NamedTuple

from tests.router.mocks import answers
from tests.router.mocks.connection import JSON_HEAD, Exchange

Act = Callable[[Exchange], Awaitable[None]]

# Written bytes have reached the router before the line breaks: a reset overtakes what it has not read.
_ARRIVE = 0.03


class Phase(StrEnum):
    """See the module."""

    BEFORE = "before"
    AFTER = "after"
    MID = "mid"
    LATE = "late"


class Fault(NamedTuple):
    """One fault. `guilty` False: it is a way to be slow, which nobody is to be blamed for."""

    phase: Phase
    act: Act
    guilty: bool = True


async def healthy(x: Exchange) -> None:
    """As a well engine answers."""
    await x.pair_up()
    if not x.streamed:
        x.status(200, answers.whole(x.path, x.leg.rid, x.plan.events))
        return
    await x.head()
    for number in range(x.plan.events if x.side == "decode" else 1):
        await x.chunk(answers.event(x.path, x.leg.rid, number, size=x.plan.size))
        if x.plan.pause:
            await asyncio.sleep(x.plan.pause)
    await x.chunk(answers.DONE)
    await x.last_chunk()


# --- before the headers -------------------------------------------------------------------------------------


async def _hang(x: Exchange) -> None:
    """Decode takes its room, so that prefill's part is done; prefill does nothing at all."""
    if x.side == "decode":
        await x.pair_up()
    await x.for_ever()


async def _wait(x: Exchange) -> None:
    """Slow, and not to blame: as a long prefill is, or a decode that queues."""
    await x.for_ever()


async def _die_rst(x: Exchange) -> None:
    await x.both_here()
    x.reset()


async def _die_fin(x: Exchange) -> None:
    await x.both_here()
    x.close()


def _status(code: int) -> Act:
    async def act(x: Exchange) -> None:
        await x.both_here()
        x.happened()
        x.status(code, answers.error(x.path, code))

    return act


async def _garbage(x: Exchange) -> None:
    await x.both_here()
    x.happened()
    await x.raw(b"\x16\x03\x01\x00\xa5SSH-2.0-OpenSSH_9.6\r\n\x00\xff\r\n\r\n" * 4)
    await x.for_ever()


async def _no_version(x: Exchange) -> None:
    await x.both_here()
    x.happened()
    await x.raw(b"HTTP/9.9 banana\r\n\r\n")
    await x.for_ever()


async def _redirect(x: Exchange) -> None:
    """A router that follows it would send the prompt to an address that the engine names."""
    await x.both_here()
    x.happened()
    elsewhere = b"http://127.0.0.1:9/v1/chat/completions"
    await x.raw(b"HTTP/1.1 307 Temporary Redirect\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % elsewhere)


async def _endless_headers(x: Exchange) -> None:
    await x.both_here()
    x.happened()
    await x.raw(b"HTTP/1.1 200 OK\r\n")
    line = b"x-endless: " + b"a" * 1000 + b"\r\n"
    while True:
        await x.raw(line * 16)
        x.leg.sent += 16 * len(line)
        await asyncio.sleep(0)


async def _drip_headers(x: Exchange) -> None:
    if x.side == "decode":
        await x.pair_up()
    await x.raw(b"HTTP/1.1 200 OK\r\nx-slow: ")
    while True:
        await x.raw(b"a")
        await asyncio.sleep(0.05)


async def _two_lengths(x: Exchange) -> None:
    """Two readers of it disagree where it ends, which is how answers are smuggled."""
    await x.both_here()
    x.happened()
    await x.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\nab: cd\n")
    await x.for_ever()


# --- after the headers --------------------------------------------------------------------------------------


async def _hang_after(x: Exchange) -> None:
    if x.side == "decode":
        await x.pair_up()
    await x.head()
    await x.for_ever()


async def _die_after_rst(x: Exchange) -> None:
    await x.both_here()
    await x.head()
    await asyncio.sleep(_ARRIVE)
    x.reset()


async def _die_after_fin(x: Exchange) -> None:
    await x.both_here()
    await x.head()
    await asyncio.sleep(_ARRIVE)
    x.close()


async def _garbage_first_chunk(x: Exchange) -> None:
    await x.both_here()
    await x.head()
    x.happened()
    await x.raw(b"zz\r\n\x00\x01\x02\r\n")
    await x.for_ever()


async def _error_first(x: Exchange) -> None:
    await x.both_here()
    x.happened()
    if x.streamed:
        await x.head()
        await x.chunk(answers.error_event())
        await x.chunk(answers.DONE)
        await x.last_chunk()
    else:
        x.status(200, answers.error_event().removeprefix(b"data: ").rstrip())


async def _aborted_first(x: Exchange) -> None:
    await x.both_here()
    x.happened()
    if x.streamed:
        await x.head()
        await x.chunk(answers.aborted_event(x.path, x.leg.rid))
        await x.chunk(answers.DONE)
        await x.last_chunk()
    else:
        x.status(200, answers.aborted_whole(x.path, x.leg.rid))


# --- mid-way ------------------------------------------------------------------------------------------------


async def _begin(x: Exchange) -> None:
    """Up to the middle of the answer. Prefill has not sent the cache: decode waits."""
    if x.side == "decode":
        await x.pair_up()
    else:
        await x.both_here()
    await x.head()
    await x.part()


async def _die_mid_rst(x: Exchange) -> None:
    await _begin(x)
    await asyncio.sleep(_ARRIVE)
    x.reset()


async def _die_mid_fin(x: Exchange) -> None:
    await _begin(x)
    await asyncio.sleep(_ARRIVE)
    x.close()


async def _stall_mid(x: Exchange) -> None:
    await _begin(x)
    await x.for_ever()


async def _garbage_chunk(x: Exchange) -> None:
    await _begin(x)
    await asyncio.sleep(_ARRIVE)
    x.happened()
    await x.raw(b"nothex\r\nab\r\n")
    await x.for_ever()


async def _huge_chunk(x: Exchange) -> None:
    """A size that no integer holds."""
    await _begin(x)
    await asyncio.sleep(_ARRIVE)
    x.happened()
    await x.raw(b"f" * 40 + b"\r\nab\r\n")
    await x.for_ever()


async def _short_body(x: Exchange) -> None:
    """Says a length, sends less, and ends."""
    if x.side == "decode":
        await x.pair_up()
    else:
        await x.both_here()
    kind = b"text/event-stream" if x.streamed else b"application/json"
    body = answers.event(x.path, x.leg.rid, 0) if x.streamed else answers.whole(x.path, x.leg.rid, 2)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body) + 100)
    await x.raw(head + body)
    await asyncio.sleep(_ARRIVE)
    x.close()


async def _clean_end(x: Exchange) -> None:
    """A stream that ends as HTTP wants it, without its [DONE]; a body that is no JSON yet."""
    await _begin(x)
    await asyncio.sleep(_ARRIVE)
    x.happened()
    await x.last_chunk()


async def _error_mid(x: Exchange) -> None:
    await _begin(x)
    await asyncio.sleep(_ARRIVE)
    x.happened()
    await x.chunk(answers.error_event())
    await x.chunk(answers.DONE)
    await x.last_chunk()


async def _aborted_mid(x: Exchange) -> None:
    await _begin(x)
    await asyncio.sleep(_ARRIVE)
    x.happened()
    await x.chunk(answers.aborted_event(x.path, x.leg.rid))
    await x.chunk(answers.DONE)
    await x.last_chunk()


# --- late, prefill only -------------------------------------------------------------------------------------


async def _late_500(x: Exchange) -> None:
    await x.pair_up()
    await asyncio.sleep(0.2)
    x.happened()
    x.status(500, answers.error(x.path, 500))


async def _late_rst(x: Exchange) -> None:
    await x.pair_up()
    await asyncio.sleep(0.2)
    x.reset()


# --- slow, and well -----------------------------------------------------------------------------------------


async def _die_then_wait(x: Exchange) -> None:
    """The first attempt dies, the others are under way for ever."""
    book = x.leg.engine.book
    if sum(leg.engine.role == x.side for leg in book.by_tag[x.plan.tag]) > 1:
        await x.for_ever()
    await _die_rst(x)


async def _slow_start(x: Exchange) -> None:
    await x.both_here()
    await asyncio.sleep(0.4)
    await healthy(x)


async def _drip_body(x: Exchange) -> None:
    """A good answer, a few bytes at a time."""
    await x.pair_up()
    if x.streamed:
        body = b"".join(answers.event(x.path, x.leg.rid, n) for n in range(2)) + answers.DONE
    else:
        body = answers.whole(x.path, x.leg.rid, x.plan.events)
    await x.head()
    for start in range(0, len(body), 7):
        await x.chunk(body[start : start + 7])
        await asyncio.sleep(0.005)
    await x.last_chunk()


async def _two_answers(x: Exchange) -> None:
    """A good answer, and behind it one that nobody asked for: it must reach nobody."""
    await x.pair_up()
    body = answers.whole(x.path, x.leg.rid, x.plan.events)
    poison = b'{"poison":true}'
    await x.raw(JSON_HEAD % (200, b"OK", len(body)) + body + JSON_HEAD % (200, b"OK", len(poison)) + poison)


FAULTS: dict[str, Fault] = {
    "hang": Fault(Phase.BEFORE, _hang),
    "die-rst": Fault(Phase.BEFORE, _die_rst),
    "die-fin": Fault(Phase.BEFORE, _die_fin),
    **{f"status-{code}": Fault(Phase.BEFORE, _status(code)) for code in answers.MESSAGES},
    "garbage": Fault(Phase.BEFORE, _garbage),
    "no-version": Fault(Phase.BEFORE, _no_version),
    "redirect": Fault(Phase.BEFORE, _redirect),
    "endless-headers": Fault(Phase.BEFORE, _endless_headers),
    "drip-headers": Fault(Phase.BEFORE, _drip_headers),
    "two-lengths": Fault(Phase.BEFORE, _two_lengths),
    "hang-after": Fault(Phase.AFTER, _hang_after),
    "die-after-rst": Fault(Phase.AFTER, _die_after_rst),
    "die-after-fin": Fault(Phase.AFTER, _die_after_fin),
    "garbage-first-chunk": Fault(Phase.AFTER, _garbage_first_chunk),
    "error-first": Fault(Phase.AFTER, _error_first),
    "aborted-first": Fault(Phase.AFTER, _aborted_first),
    "die-mid-rst": Fault(Phase.MID, _die_mid_rst),
    "die-mid-fin": Fault(Phase.MID, _die_mid_fin),
    "stall-mid": Fault(Phase.MID, _stall_mid),
    "garbage-chunk": Fault(Phase.MID, _garbage_chunk),
    "huge-chunk": Fault(Phase.MID, _huge_chunk),
    "short-body": Fault(Phase.MID, _short_body),
    "clean-end": Fault(Phase.MID, _clean_end),
    "error-mid": Fault(Phase.MID, _error_mid),
    "aborted-mid": Fault(Phase.MID, _aborted_mid),
    "late-500": Fault(Phase.LATE, _late_500),
    "late-rst": Fault(Phase.LATE, _late_rst),
    "wait": Fault(Phase.BEFORE, _wait, guilty=False),
    "die-rst-wait": Fault(Phase.BEFORE, _die_then_wait, guilty=False),
    "slow-start": Fault(Phase.BEFORE, _slow_start, guilty=False),
    "drip-body": Fault(Phase.MID, _drip_body, guilty=False),
    "two-answers": Fault(Phase.MID, _two_answers, guilty=False),
}
