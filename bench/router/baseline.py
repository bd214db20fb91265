"""The router that one writes first: FastAPI, httpx, pydantic-free, with the features that are compared.

Run by the virtual environment of the other routers, so it imports nothing of Plait. It pairs engines in
turn, checks an API key, counts in Prometheus, and looks after the engines' health. What it does not have:
failures of one leg ending the other, retries, deadlines, backpressure.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import itertools
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import Counter, Gauge, Histogram, generate_latest

REQUESTS = Counter("baseline_requests_total", "Requests", ["route", "status"])
SECONDS = Histogram("baseline_request_seconds", "Time of a request", ["route"])
FIRST = Histogram("baseline_first_chunk_seconds", "Time to the first chunk", ["route"])
UNDER_WAY = Gauge("baseline_in_flight", "Requests under way")


class Engines:
    """Engines of one side, those in good health taken in turn."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._well = set(urls)
        self._turn = itertools.count()

    def pick(self) -> str:
        """The next one."""
        well = [url for url in self._urls if url in self._well]
        if not well:
            raise HTTPException(503, "no engine is in good health")
        return well[next(self._turn) % len(well)]

    async def watch(self, client: httpx.AsyncClient, seconds: float) -> None:
        """Ask each for its health, for ever."""
        while True:
            for url in self._urls:
                try:
                    good = (await client.get(f"{url}/health", timeout=seconds)).status_code == 200
                except httpx.HTTPError:
                    good = False
                (self._well.add if good else self._well.discard)(url)
            await asyncio.sleep(seconds)


def make_app(options: argparse.Namespace) -> FastAPI:
    """The whole router."""
    bootstrap = {url: int(port) for url, _, port in (text.rpartition(",") for text in options.prefill)}
    prefill, decode = Engines(list(bootstrap)), Engines(options.decode)
    # httpx's defaults but for the cap on connections, which would hold back streams. It looks at every idle
    # connection for each request: with more than its 20 kept it costs far more still.
    client = httpx.AsyncClient(
        timeout=600, limits=httpx.Limits(max_connections=None, max_keepalive_connections=20)
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watches = [asyncio.create_task(e.watch(client, options.health_seconds)) for e in (prefill, decode)]
        yield
        for watch in watches:
            watch.cancel()
        await client.aclose()

    def known(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given, f"Bearer {options.key}"):
            raise HTTPException(401, "wrong API key")

    app = FastAPI(lifespan=lifespan)

    async def route(request: Request) -> Response:
        path = request.url.path
        began = time.perf_counter()
        body: dict[str, Any] = await request.json()
        to_prefill, to_decode = prefill.pick(), decode.pick()
        body |= {
            "bootstrap_host": httpx.URL(to_prefill).host,
            "bootstrap_port": bootstrap[to_prefill],
            "bootstrap_room": secrets.randbits(63),
        }
        first = asyncio.create_task(client.post(to_prefill + path, json=body))
        if not body.get("stream"):
            with UNDER_WAY.track_inprogress():
                answer = await client.post(to_decode + path, json=body)
                await first
            REQUESTS.labels(path, answer.status_code).inc()
            SECONDS.labels(path).observe(time.perf_counter() - began)
            return Response(answer.content, answer.status_code, media_type=answer.headers["content-type"])

        async def chunks() -> AsyncIterator[bytes]:
            with UNDER_WAY.track_inprogress():
                async with client.stream("POST", to_decode + path, json=body) as answer:
                    late = True
                    async for chunk in answer.aiter_raw():
                        if late:
                            FIRST.labels(path).observe(time.perf_counter() - began)
                            late = False
                        yield chunk
                await first
            REQUESTS.labels(path, answer.status_code).inc()
            SECONDS.labels(path).observe(time.perf_counter() - began)

        return StreamingResponse(chunks(), media_type="text/event-stream")

    for path in ("/v1/chat/completions", "/v1/completions", "/generate"):
        app.post(path, dependencies=[Depends(known)])(route)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(), media_type="text/plain")

    return app


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--health-seconds", type=float, default=2)
    parser.add_argument("--prefill", action="append", required=True, metavar="URL,BOOTSTRAP_PORT")
    parser.add_argument("--decode", action="append", required=True, metavar="URL")
    options = parser.parse_args()
    uvicorn.run(make_app(options), host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
