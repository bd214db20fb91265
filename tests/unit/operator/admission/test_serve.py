"""The admission server as a process."""

import base64
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from tests.cluster.admission.matrix import manifest

from plait_operator.admission.certificates import CERTIFICATE, KEY, NewCertificate, ensure

REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "u",
        "resource": {"group": "plait.dev", "version": "v1alpha1", "resource": "sharedkvdeployments"},
        "operation": "CREATE",
        "object": manifest({}),
    },
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def put(folder: Path) -> NewCertificate:
    told = ensure(None, dns_names=["localhost"], now=datetime.now(UTC))
    assert told is not None
    for name in (CERTIFICATE, KEY):
        (folder / name).write_bytes(base64.b64decode(told.data[name]))
    return told


class Served:
    def __init__(self, folder: Path) -> None:
        self.port, self.health_port = free_port(), free_port()
        words = ["admission", f"--port={self.port}", f"--health-port={self.health_port}", "--host=127.0.0.1"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "plait_operator", *words, f"--certificates={folder}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def probe(self, path: str) -> str:
        """Status and text; '' while nobody listens."""
        try:
            told = httpx.get(f"http://127.0.0.1:{self.health_port}{path}", timeout=10)
        except httpx.TransportError:
            return ""
        return f"{told.status_code} {told.text.strip()}"

    def await_probe(self, path: str, begins: str) -> str:
        deadline = time.monotonic() + 60
        while not (told := self.probe(path)).startswith(begins):
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline, told
            time.sleep(0.05)
        return told

    def client(self, told: NewCertificate) -> httpx.Client:
        context = ssl.create_default_context(cadata=told.bundle.decode())
        return httpx.Client(verify=context, base_url=f"https://localhost:{self.port}", timeout=30)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path)
    yield one
    one.process.kill()
    one.process.communicate()


def test_from_a_wait_for_the_certificate_over_a_new_one_to_the_end(served: Served, tmp_path: Path) -> None:
    served.await_probe("/healthz", "200")
    assert "waits for a certificate" in served.await_probe("/readyz", "503")
    first = put(tmp_path)
    served.await_probe("/readyz", "200")
    with served.client(first) as before:
        assert before.post("/validate", json=REVIEW).json()["response"]["allowed"] is True
        second = put(tmp_path)
        deadline = time.monotonic() + 30
        while True:
            try:
                with served.client(second) as after:
                    assert after.post("/mutate", json=REVIEW).json()["response"]["allowed"] is True
                break
            except httpx.ConnectError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        # The connection from before was not dropped: its certificate would not be trusted any more.
        assert before.post("/validate", json=REVIEW).json()["response"]["allowed"] is True
    served.process.send_signal(signal.SIGTERM)
    log = served.process.communicate(timeout=30)[0]
    assert served.process.returncode == 0, log
    assert "waiting for the webhook's certificate" in log
    assert "ended" in log


def test_a_review_under_way_is_answered_before_the_end(served: Served, tmp_path: Path) -> None:
    told = put(tmp_path)
    served.await_probe("/readyz", "200")
    context = ssl.create_default_context(cadata=told.bundle.decode())
    content = httpx.Request("POST", "https://localhost/validate", json=REVIEW)
    body = content.read()
    with (
        socket.create_connection(("127.0.0.1", served.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(
            b"POST /validate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body[:100]
        )
        time.sleep(0.2)
        served.process.send_signal(signal.SIGTERM)
        served.await_probe("/readyz", "503")
        connection.sendall(body[100:])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    served.process.communicate(timeout=30)
    assert served.process.returncode == 0


def test_the_end_comes_while_it_still_waits_for_a_certificate(served: Served) -> None:
    served.await_probe("/healthz", "200")
    served.process.send_signal(signal.SIGTERM)
    log = served.process.communicate(timeout=30)[0]
    assert served.process.returncode == 0, log


def test_an_unknown_feature_is_told_with_the_known_ones(tmp_path: Path) -> None:
    words = ["admission", f"--certificates={tmp_path}", "--experimental=multi-hosts"]
    ended = subprocess.run(
        [sys.executable, "-m", "plait_operator", *words], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert "'multi-hosts' is no feature" in ended.stderr
    assert "multi-host-groups" in ended.stderr


def test_a_port_that_is_taken_ends_it_with_the_reason(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["admission", f"--health-port={port}", "--host=127.0.0.1", f"--certificates={tmp_path}"]
        ended = subprocess.run(
            [sys.executable, "-m", "plait_operator", *words], capture_output=True, text=True, timeout=60
        )
    assert ended.returncode != 0
    assert "address already in use" in ended.stderr
