"""The two applications over HTTP, in process."""

from typing import Any

import httpx
import pytest
from tests.cluster.admission.matrix import manifest

from plait_operator.admission import app as rooms
from plait_operator.admission.app import MOST_BYTES, health, webhooks
from plait_operator.admission.metrics import AdmissionMetrics


def asked(new: Any) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "resource": {"group": "plait.dev", "version": "v1alpha1", "resource": "sharedkvdeployments"},
            "operation": "CREATE",
            "object": new,
        },
    }


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")


async def test_reviews_are_answered_and_counted() -> None:
    metrics = AdmissionMetrics()
    async with client(webhooks(metrics)) as http:
        good = await http.post("/validate", json=asked(manifest({})))
        bad = await http.post("/mutate", json=asked(manifest({"spec/router/policy": "x"})))
    assert (good.status_code, good.json()["response"]["allowed"]) == (200, True)
    assert (bad.status_code, bad.json()["response"]["allowed"]) == (200, False)
    figures = metrics.text().decode()
    counted = (
        'plait_admission_reviews_total{kind="SharedKVDeployment",outcome="refused",webhook="mutate"} 1.0'
    )
    assert counted in figures
    assert 'plait_admission_violations_total{section="spec.router"} 1.0' in figures
    assert 'plait_admission_review_seconds_count{webhook="validate"} 1.0' in figures


@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 5000 + b"]" * 5000, 400, "not JSON"),
        (b"[]", 400, "apiVersion"),
        (b'{"apiVersion": "v1", "kind": "Pod"}', 400, "apiVersion"),
        (b"x" * (MOST_BYTES + 1), 413, "bytes"),
    ],
)
async def test_what_is_no_review_gets_an_error_that_says_so(content: bytes, status: int, text: str) -> None:
    metrics = AdmissionMetrics()
    async with client(webhooks(metrics)) as http:
        told = await http.post("/validate", content=content)
    assert told.status_code == status
    assert text in told.json()["error"]


async def test_a_body_without_a_length_is_read_no_further_than_it_may_be() -> None:
    sent = 0

    async def pieces() -> Any:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b"x" * (1 << 20)

    async with client(webhooks(AdmissionMetrics())) as http:
        told = await http.post("/validate", content=pieces())
    assert told.status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/validate", 405), ("POST", "/", 404), ("GET", "/docs", 404)]
)
async def test_there_is_nothing_else(method: str, path: str, status: int) -> None:
    async with client(webhooks(AdmissionMetrics())) as http:
        assert (await http.request(method, path)).status_code == status


async def test_a_fault_refuses_and_is_told_in_the_log_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(rooms, "review", broken)
    metrics = AdmissionMetrics()
    async with client(webhooks(metrics)) as http:
        told = await http.post("/validate", json=asked(manifest({})))
    assert told.status_code == 200
    response = told.json()["response"]
    assert (response["uid"], response["allowed"]) == ("u", False)
    assert "has a fault" in response["status"]["message"]
    assert "a secret detail" not in told.text
    assert "a secret detail" in caplog.text
    assert 'outcome="fault",webhook="validate"} 1.0' in metrics.text().decode()


async def test_probes_and_figures() -> None:
    why = "waits"
    metrics = AdmissionMetrics()
    async with client(health(metrics, ready=lambda: why)) as http:
        assert (await http.get("/healthz")).status_code == 200
        waiting = await http.get("/readyz")
        assert (waiting.status_code, waiting.text) == (503, "waits\n")
        why = ""
        assert (await http.get("/readyz")).status_code == 200
        assert "plait_admission_certificate_expiry_seconds" not in (await http.get("/metrics")).text
        metrics.certificate(1e9)
        assert "plait_admission_certificate_expiry_seconds 1e+09" in (await http.get("/metrics")).text
        assert (await http.post("/validate")).status_code == 404
