"""What the official client makes of failures: it raises, and never takes half an answer for a whole one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from tests.router.harness.bench import Bench
from tests.router.mocks.plan import Plan

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASKED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest_asyncio.fixture(loop_scope="session")
async def client(it: Bench) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=it.router.base_url, api_key="none", max_retries=0, timeout=20
    ) as made:
        yield made


@pytest.mark.parametrize(
    "fault",
    [
        "die-mid-rst",
        "die-mid-fin",
        "stall-mid",
        "garbage-chunk",
        "huge-chunk",
        "short-body",
        "clean-end",
        "error-mid",
    ],
)
async def test_stream_that_breaks_raises(client: openai.AsyncOpenAI, fault: str) -> None:
    stream = await client.chat.completions.create(
        **ASKED, stream=True, extra_body=Plan(f"raises-{fault}", decode=fault).field()
    )
    parts: list[object] = []

    async def read() -> None:
        async for chunk in stream:
            parts.append(chunk)

    with pytest.raises(openai.APIError) as raised:
        await read()
    assert parts, "what came before the fault was not passed on"
    assert raised.value.message


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("status-400", openai.BadRequestError),
        ("status-422", openai.UnprocessableEntityError),
        ("status-429", openai.RateLimitError),
        ("status-500", openai.InternalServerError),
        ("status-503", openai.InternalServerError),
        ("die-rst", openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_failure_before_the_answer_raises_its_kind(
    client: openai.AsyncOpenAI, side: str, fault: str, kind: type[openai.APIStatusError], streamed: bool
) -> None:
    plan = Plan(f"kind-{side}-{fault}-{streamed}", **{side: fault})  # type: ignore[arg-type]
    with pytest.raises(kind) as raised:
        await client.chat.completions.create(**ASKED, stream=streamed, extra_body=plan.field())
    assert raised.value.message
