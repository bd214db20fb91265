"""One router process with two mock engines for all conformance tests, and one that asks for API keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
from tests.router.conformance.engine import pair
from tests.router.conformance.process import SECRET, Router, running
from tests.router.conformance.wire import Wire, request
from tests.unit.router import certificates

# Small enough that a test can exceed it without moving much.
MAX_BODY_MIB = 1
# To one failure, so that fewer than half of an engine's requests fail.
_GOOD = 3
GOOD_KEY = f"plait-{SECRET}-good"
SLOW_KEY = f"plait-{SECRET}-slow"
ADMIN_KEY = f"admin-{SECRET}"


@dataclass(frozen=True, kw_only=True)
class Keyed(Router):
    """A router that speaks TLS, and the file of the authority to trust for it."""

    authority: Path


@pytest.fixture(scope="package")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """Open to everybody, both engines healthy."""
    folder = tmp_path_factory.mktemp("router")
    with (
        pair() as (prefill, decode),
        running(folder, prefill, decode, "--max-body-mib", str(MAX_BODY_MIB)) as made,
    ):
        yield made


@pytest.fixture(scope="package")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """As on the open net: TLS, client keys, an admin key, and engines with a key of their own.

    One client key may ask once a minute.
    """
    folder = tmp_path_factory.mktemp("keyed")
    lines = [f"good sha256:{_digest(GOOD_KEY)}", f"slow sha256:{_digest(SLOW_KEY)} rate=1/min burst=1"]
    files = {"keys": "\n".join(lines).encode() + b"\n"}
    certificate = certificates.make("router", authority=True)
    files |= {"tls.crt": certificate.pem, "tls.key": certificate.key_pem}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    options = {
        "--api-keys": folder / "keys",
        "--engine-api-key": f"engine-{SECRET}",
        "--admin-api-key": ADMIN_KEY,
        "--tls-certificate": folder / "tls.crt",
        "--tls-key": folder / "tls.key",
    }
    words = [str(word) for option in options.items() for word in option]
    with pair() as (prefill, decode), running(folder, prefill, decode, *words) as made:
        yield Keyed(
            url=made.url.replace("http:", "https:"),
            admin_url=made.admin_url,
            address=made.address,
            prefill=prefill,
            decode=decode,
            log=made.log,
            authority=folder / "tls.crt",
        )


@pytest.fixture
def client(router: Router) -> Iterator[openai.OpenAI]:
    """The official client, which tries nothing twice."""
    with openai.OpenAI(base_url=router.url + "/v1", api_key="any", max_retries=0, timeout=20) as made:
        yield made


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> None:
    """Each test sees only the requests that it made."""
    for name in {"router", "keyed"} & set(request.fixturenames):
        for engine in request.getfixturevalue(name).engines:
            engine.prompts.clear()
            engine.aborts.clear()
            engine.strays.clear()


@pytest.fixture
def calm(router: Router) -> None:
    """Good requests before a test in which an engine fails, so that its circuit breaker stays closed."""
    for _ in range(_GOOD):
        with Wire(router.address) as wire:
            wire.send(request("POST", "/v1/chat/completions", b"{}"))
            assert wire.reply().status == 200
    for engine in router.engines:
        engine.prompts.clear()


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
