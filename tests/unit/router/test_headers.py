"""Which headers travel."""

from __future__ import annotations

import pytest

from plait.router.errors import RouterError
from plait.router.headers import to_client, to_engine


def raw(**headers: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]


def test_what_belongs_to_one_connection_stays_behind() -> None:
    sent = to_engine(
        raw(
            host="x",
            content_length="3",
            connection="keep-alive, x-mine",
            x_mine="1",
            transfer_encoding="chunked",
            accept_encoding="gzip",
            expect="100-continue",
            x_smg_routing_key="k",
            traceparent="t",
        ),
        api_key="",
    )
    assert dict(sent) == {
        "x-smg-routing-key": "k",
        "traceparent": "t",
        "content-type": "application/json",
        "accept-encoding": "identity",
    }


def test_key_of_the_engines_replaces_the_clients() -> None:
    client = raw(authorization="Bearer client")
    assert to_engine(client, api_key="")["authorization"] == "Bearer client"
    assert to_engine(client, api_key="engine").getall("authorization") == ["Bearer engine"]
    assert "authorization" not in to_engine([], api_key="")


def test_content_type_and_repeated_headers_stay() -> None:
    sent = to_engine([(b"x-a", b"1"), (b"x-a", b"2"), (b"content-type", b"text/json")], api_key="")
    assert sent.getall("x-a") == ["1", "2"]
    assert sent["content-type"] == "text/json"


@pytest.mark.parametrize("name", ["x-override-rid", "X-Override-Bootstrap-Room", "x-override-bootstrap-host"])
def test_pairing_by_header_is_refused(name: str) -> None:
    with pytest.raises(RouterError) as caught:
        to_engine([(name.encode(), b"1")], api_key="")
    assert (caught.value.status, caught.value.param) == (400, name.lower())
    to_engine([(b"x-override-priority", b"1")], api_key="")


def test_engine_headers_for_the_client() -> None:
    kept = to_client(
        {
            "Content-Type": "text/event-stream",
            "Date": "d",
            "Server": "s",
            "Transfer-Encoding": "c",
            "X-A": "é",
        }
    )
    assert kept == [(b"content-type", b"text/event-stream"), (b"x-a", "é".encode())]
