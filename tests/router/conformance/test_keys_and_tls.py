"""A router as it stands on the open net: TLS, a key for each client, the admin port closed to them."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from tests.router.conformance import shapes
from tests.router.conformance.conftest import ADMIN_KEY, GOOD_KEY, SLOW_KEY, Keyed
from tests.router.conformance.process import SECRET, Router

from plait.telemetry.metrics import ROUTER_METRICS, Kind

MESSAGES: Any = [{"role": "user", "content": SECRET}]
CLIENTS = ("/v1/chat/completions", "/v1/completions", "/generate")


def _chat(client: openai.OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=MESSAGES, **more)


@pytest.fixture
def http(keyed: Keyed) -> Iterator[httpx.Client]:
    """Trusts the router's certificate, and sends no key."""
    context = ssl.create_default_context(cafile=str(keyed.authority))
    with httpx.Client(verify=context, timeout=20, trust_env=False) as made:
        yield made


@pytest.fixture
def make_client(keyed: Keyed, http: httpx.Client) -> Callable[[str], openai.OpenAI]:
    return lambda key: openai.OpenAI(base_url=keyed.url + "/v1", api_key=key, max_retries=0, http_client=http)


def test_right_key(make_client: Callable[[str], openai.OpenAI], keyed: Router) -> None:
    client = make_client(GOOD_KEY)
    assert _chat(client).choices[0].message.content == "".join(shapes.WORDS)
    assert "".join(c.choices[0].delta.content or "" for c in _chat(client, stream=True))
    assert [m.id for m in client.models.list()] == ["tiny"]
    for engine in keyed.engines:
        # The client's key stays here; the engines have their own.
        assert {p.header("authorization") for p in engine.prompts} == {f"Bearer engine-{SECRET}"}
        assert GOOD_KEY not in str(engine.prompts)


@pytest.mark.parametrize("size", [40_000, 200_000, 3 << 20])
def test_long_body(keyed: Keyed, http: httpx.Client, size: int) -> None:
    """Longer than a record of TLS, and than what one read takes."""
    body = b'{"prompt":"%b"}' % random.Random(size).randbytes(size).hex()[: size - 13].encode()
    headers = {"authorization": f"Bearer {GOOD_KEY}", "content-type": "application/json"}
    for _ in range(2):
        assert http.post(keyed.url + CLIENTS[1], content=body, headers=headers).status_code == 200
    for engine in keyed.engines:
        assert [seen.raw.startswith(body[:-1] + b",") for seen in engine.prompts] == [True, True]


def test_key_in_the_other_header(keyed: Router, http: httpx.Client) -> None:
    answer = http.post(keyed.url + CLIENTS[0], json={"messages": []}, headers={"x-api-key": GOOD_KEY})
    assert answer.status_code == 200
    assert GOOD_KEY not in str([e.prompts for e in keyed.engines])


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Bearer wrong",
        f"Bearer {GOOD_KEY}x",
        f"Bearer {GOOD_KEY[:-1]}",
        f"Basic {GOOD_KEY}",
        GOOD_KEY,
        "Bearer",
        "Bearer ключ",
    ],
)
def test_no_key_or_a_wrong_one(keyed: Router, http: httpx.Client, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization.encode()}
    answers = [http.post(keyed.url + path, content=b"not even JSON", headers=headers) for path in CLIENTS]
    answers += [http.get(keyed.url + path, headers=headers) for path in ("/v1/models", "/v1/models/tiny")]
    for answer in answers:
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert [e.asked for e in keyed.engines] == [0, 0]


def test_wrong_key_is_the_clients_authentication_error(make_client: Callable[[str], openai.OpenAI]) -> None:
    with pytest.raises(openai.AuthenticationError) as raised:
        _chat(make_client("wrong"))
    assert raised.value.code == "invalid_api_key"


def test_key_that_asks_too_often(make_client: Callable[[str], openai.OpenAI], keyed: Router) -> None:
    client = make_client(SLOW_KEY)
    _chat(client)
    with pytest.raises(openai.RateLimitError) as raised:
        _chat(client)
    assert 1 <= int(raised.value.response.headers["retry-after"]) <= 60
    assert raised.value.code == "rate_limit_exceeded"
    assert [len(e.prompts) for e in keyed.engines] == [1, 1]


def test_probes_ask_for_no_key(keyed: Router, http: httpx.Client) -> None:
    for url in (keyed.url, keyed.admin_url):
        for path in ("/health", "/ready", "/openapi.json"):
            assert http.get(url + path).status_code == 200


def test_plain_http_on_the_tls_port_is_not_served(keyed: Router) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(keyed.url.replace("https:", "http:") + "/health", timeout=20, trust_env=False)


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/groups", "/api/v1/workers", "/api/v1/workers/drain"])
def test_figures_and_admin_are_not_on_the_clients_port(keyed: Router, http: httpx.Client, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        answer = http.request(method, keyed.url + path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_route")


@pytest.mark.parametrize("path", CLIENTS)
def test_prompts_are_not_on_the_admin_port(keyed: Router, http: httpx.Client, path: str) -> None:
    answer = http.post(keyed.admin_url + path, json={}, headers={"authorization": f"Bearer {GOOD_KEY}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_route")


@pytest.mark.parametrize("key", [None, "wrong", GOOD_KEY])
def test_admin_api_asks_for_its_own_key(keyed: Router, http: httpx.Client, key: str | None) -> None:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    url = keyed.admin_url + "/api/v1/workers"
    answers = [http.get(url, headers=headers)]
    answers.append(http.post(url, json={"side": "decode", "url": "http://x:1"}, headers=headers))
    answers.append(http.delete(url, params={"url": keyed.decode.url}, headers=headers))
    answers += [
        http.post(f"{url}/{what}", params={"url": keyed.decode.url}, headers=headers)
        for what in ("drain", "undrain")
    ]
    for answer in answers:
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    right = http.get(url, headers={"authorization": f"Bearer {ADMIN_KEY}"}).json()
    assert {(w["url"], w["ready"], w["draining"]) for w in right["workers"]} == {
        (e.url, True, False) for e in keyed.engines
    }


def test_metrics_name_what_the_table_of_metrics_names(
    keyed: Router, http: httpx.Client, make_client: Callable[[str], openai.OpenAI]
) -> None:
    list(_chat(make_client(GOOD_KEY), stream=True))
    text = http.get(keyed.admin_url + "/metrics").text
    suffix = {Kind.COUNTER: "_total"}
    types = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE ")}
    named = {m.name + suffix.get(m.kind, ""): str(m.kind) for m in ROUTER_METRICS}
    assert {name: types.get(name) for name in named} == named
    assert SECRET not in text
