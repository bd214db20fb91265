"""The two ASGI applications: the webhooks (over TLS), and health and metrics (plain, for the kubelet)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import anyio
import anyio.to_thread
import orjson
from fastapi import FastAPI, Request, Response

from plait_operator.admission.metrics import CONTENT_TYPE, AdmissionMetrics
from plait_operator.admission.review import Answer, MalformedReviewError, Webhook, refusal, review

log = logging.getLogger("plait.admission")

MOST_BYTES = 8 << 20
"""Longest body: an object has 1.5 MiB at most in the API server, and an update carries two."""
_THREADS = 2
_JSON = "application/json"


def webhooks(metrics: AdmissionMetrics, *, experimental: frozenset[str] = frozenset()) -> FastAPI:
    """POST /mutate and POST /validate: AdmissionReview v1 in, AdmissionReview v1 out.

    What is no review gets a 400 with the field, a body over MOST_BYTES a 413. A fault of the code is a
    refusal that says so: `failurePolicy: Fail` means that nothing passes unchecked.
    """
    app = FastAPI(title="Plait admission", docs_url=None, redoc_url=None, openapi_url=None)
    # Threads, so that probes are answered beside a long review; more than two would only share the core.
    limiter = anyio.CapacityLimiter(_THREADS)

    async def answered(request: Request, webhook: Webhook) -> Response:
        content = await _content(request)
        if content is None:
            return _malformed(413, f"the body has more than {MOST_BYTES} bytes")
        started = time.perf_counter()

        def judged() -> tuple[Response, str, str]:
            return _judge(content, webhook, experimental, metrics)

        response, kind, outcome = await anyio.to_thread.run_sync(judged, limiter=limiter)
        seconds = time.perf_counter() - started
        metrics.reviewed(webhook=webhook.value, kind=kind, outcome=outcome, seconds=seconds)
        return response

    @app.post("/mutate")
    async def mutate(request: Request) -> Response:
        return await answered(request, Webhook.MUTATE)

    @app.post("/validate")
    async def validate(request: Request) -> Response:
        return await answered(request, Webhook.VALIDATE)

    return app


def health(metrics: AdmissionMetrics, *, ready: Callable[[], str]) -> FastAPI:
    """GET /healthz, /readyz and /metrics. `ready`: why it is not, or '' where it is."""
    app = FastAPI(title="Plait admission", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get("/readyz")
    async def readyz() -> Response:
        why = ready()
        return Response(f"{why or 'ok'}\n", status_code=503 if why else 200, media_type="text/plain")

    @app.get("/metrics")
    async def figures() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return app


def _judge(
    content: bytes, webhook: Webhook, experimental: frozenset[str], metrics: AdmissionMetrics
) -> tuple[Response, str, str]:
    """(what is sent, kind, outcome)."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        return _malformed(400, f"not JSON: {error}"), "", "malformed"
    try:
        answer: Answer = review(body, webhook=webhook, experimental=experimental)
    except MalformedReviewError as error:
        return _malformed(400, str(error)), "", "malformed"
    except Exception:
        log.exception("a review could not be judged")
        text = (
            "Plait's admission webhook has a fault and could not check this manifest, so it is refused; "
            "the webhook's log says more"
        )
        return Response(orjson.dumps(refusal(body, text)), media_type=_JSON), "", "fault"
    for violation in answer.violations:
        metrics.violated(violation.field)
    return Response(orjson.dumps(answer.body), media_type=_JSON), answer.kind, answer.outcome.value


async def _content(request: Request) -> bytes | None:
    """The body, or None where it is too long. Reads no more than it may keep."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MOST_BYTES:
        return None
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > MOST_BYTES:
            return None
    return bytes(content)


def _malformed(status: int, text: str) -> Response:
    return Response(orjson.dumps({"error": text}), status_code=status, media_type=_JSON)
