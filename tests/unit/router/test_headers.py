"""Which headers travel."""

from __future__ import annotations

import pytest

from plait.router.errors import RouterError
from plait.router.headers import fixed_lines, to_client, to_engine
from plait.router.samples.fields import OWNED_HEADERS


def raw(**headers: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]


def test_what_belongs_to_one_connection_stays_behind() -> None:
    sent = to_engine(
        raw(
            host="x",
            content_length="3",
            connection="keep-alive, x-mine",
            keep_alive="5",
            te="trailers",
            upgrade="h2c",
            proxy_authorization="Basic x",
            x_mine="1",
            transfer_encoding="chunked",
            accept_encoding="gzip",
            content_encoding="identity",
            content_type="text/json",
            expect="100-continue",
            x_smg_routing_key="k",
            traceparent="t",
        ),
        fixed=b"x-own: 1\r\n",
    )
    assert sent == b"x-smg-routing-key: k\r\ntraceparent: t\r\nx-own: 1\r\n"


def test_what_stands_in_the_callers_list_stays_behind() -> None:
    sent = to_engine(raw(traceparent="t", tracestate="s", x_a="1"), fixed=b"", drop=(b"traceparent",))
    assert sent == b"tracestate: s\r\nx-a: 1\r\n"


@pytest.mark.parametrize("name", ["authorization", "x_api_key", "api_key", "cookie"])
def test_who_the_client_is_ends_here(name: str) -> None:
    assert to_engine(raw(**{name: "secret"}), fixed=b"") == b""


def test_routers_own_lines() -> None:
    plain = b"content-type: application/json\r\naccept-encoding: identity\r\n"
    assert fixed_lines("") == plain
    assert fixed_lines("k") == b"authorization: Bearer k\r\n" + plain


def test_repeated_headers_stay_in_order() -> None:
    sent = to_engine([(b"x-a", b"1"), (b"x-b", b"\xe9"), (b"x-a", b"2")], fixed=b"")
    assert sent == b"x-a: 1\r\nx-b: \xe9\r\nx-a: 2\r\n"


@pytest.mark.parametrize("name", sorted(OWNED_HEADERS))
def test_pairing_by_header_is_refused(name: str) -> None:
    with pytest.raises(RouterError) as caught:
        to_engine([(name.encode(), b"1")], fixed=b"")
    assert (caught.value.status, caught.value.param) == (400, name)


def test_priority_by_header_is_the_clients() -> None:
    assert to_engine([(b"x-override-priority", b"1")], fixed=b"") == b"x-override-priority: 1\r\n"


def test_engine_headers_for_the_client() -> None:
    kept = to_client(
        [
            (b"content-type", b"text/event-stream"),
            (b"date", b"d"),
            (b"server", b"s"),
            (b"transfer-encoding", b"c"),
            (b"content-length", b"3"),
            (b"connection", b"keep-alive"),
            (b"x-request-id", b"the engine's"),
            (b"x-a", "é".encode()),
        ]
    )
    assert kept == [(b"content-type", b"text/event-stream"), (b"x-a", "é".encode())]
