"""The router's OpenAPI describes it: schemathesis asks everything in it, and much that is not in it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from tests.router.conformance.conftest import ADMIN_KEY, GOOD_KEY, Keyed
from tests.router.conformance.engine import pair
from tests.router.conformance.process import Router, running

PROMPTS = ("/v1/chat/completions", "/v1/completions", "/generate")
PROBES = ("/health", "/ready")
FIGURES = ("/api/v1/groups", "/api/v1/cache", "/api/v1/transfers", "/metrics")
# Not: whether a body outside the schema is refused. What a prompt may hold is for the engine to say, and
# the mock engine takes everything.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "missing_required_header",
    "ignored_auth",
)
_EXAMPLES = 8
_SECONDS = 60


def test_clients_schema_names_what_clients_get(router: Router) -> None:
    schema = _schema(router.url)
    assert set(schema["paths"]) >= {*PROMPTS, *PROBES, "/v1/models", "/v1/models/{model}"}
    for path in PROMPTS:
        assert set(schema["paths"][path]) == {"post"}
        operation = schema["paths"][path]["post"]
        assert "application/json" in operation["requestBody"]["content"]
        assert set(operation["responses"]) >= {"200", "400", "413", "429", "503"}
        # An answer can be one object, or a stream of events.
        assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert not set(schema["paths"]) & set(FIGURES)


def test_admin_schema_names_what_an_operator_gets(router: Router) -> None:
    schema = _schema(router.admin_url)
    assert set(schema["paths"]) >= {*PROBES, *FIGURES}
    assert not set(schema["paths"]) & set(PROMPTS)


def test_every_error_in_a_schema_has_the_one_form(router: Router) -> None:
    for url in (router.url, router.admin_url):
        schema = _schema(url)
        errors = [
            (path, method, status, content)
            for path, methods in schema["paths"].items()
            for method, operation in methods.items()
            for status, answer in operation["responses"].items()
            if status[0] in "45" and path not in PROBES
            for content in answer["content"].values()
        ]
        wrong = [each[:3] for each in errors if not _is_error(schema, each[3]["schema"])]
        assert wrong == []


def test_clients_port(router: Router, tmp_path: Path) -> None:
    _ask_everything(router, f"{router.url}/openapi.json", folder=tmp_path)


def test_clients_port_with_keys(keyed: Keyed, tmp_path: Path) -> None:
    options = ("--header", f"Authorization: Bearer {GOOD_KEY}", "--tls-verify", str(keyed.authority))
    _ask_everything(keyed, f"{keyed.url}/openapi.json", *options, folder=tmp_path, fuzz=False)


def test_admin_port(tmp_path: Path) -> None:
    """On a router of its own: workers are added to it, and may be taken from it."""
    key = ("--admin-api-key", ADMIN_KEY)
    with pair() as (prefill, decode), running(tmp_path, prefill, decode, *key) as router:
        options = ("--header", f"Authorization: Bearer {ADMIN_KEY}")
        _ask_everything(router, f"{router.admin_url}/openapi.json", *options, folder=tmp_path)


def _ask_everything(router: Router, schema: str, *options: str, folder: Path, fuzz: bool = True) -> None:
    """Let schemathesis loose on all that the OpenAPI at `schema` names."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", schema, *options),
        *("--checks", ",".join(CHECKS), "--phases", f"examples,coverage{',fuzzing' if fuzz else ''}"),
        *("--max-examples", str(_EXAMPLES), "--seed", "1", "--generation-deterministic"),
        *("--request-timeout", "20", "--max-redirects", "0", "--suppress-health-check", "all"),
        *("--warnings", "off", "--continue-on-failure"),
    ]
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS
    )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    for engine in router.engines:
        assert engine.strays == []


def _schema(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=20) as answer:
        schema = json.load(answer)
    assert isinstance(schema, dict)
    return schema


def _is_error(schema: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether `found` is {"error": {"message", "type", "code", "param"}}."""
    inner = _resolve(schema, _resolve(schema, found).get("properties", {}).get("error", {}))
    return set(inner.get("properties", {})) == {"message", "type", "code", "param"}


def _resolve(schema: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in found:
        target: Any = schema
        for key in found["$ref"].removeprefix("#/").split("/"):
            target = target[key]
        found = target
    return found
