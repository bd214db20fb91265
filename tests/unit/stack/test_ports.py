"""Ports asked for are checked and named; picked ones are free and different."""

from __future__ import annotations

import socket

import pytest

from plait.stack.ports import PICK_FROM, PortError, is_free, pick_free, require_free

HOST = "127.0.0.1"


def _listener() -> socket.socket:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
    held.bind((HOST, 0))
    held.listen()
    return held


def test_a_listening_port_is_not_free_and_then_is() -> None:
    with _listener() as held:
        port = held.getsockname()[1]
        assert not is_free(port, host=HOST)
        with pytest.raises(PortError, match=rf"--port={port}: already in use .* on {HOST}: stop what"):
            require_free(port, host=HOST, field="--port")
    assert require_free(port, host=HOST, field="--port") == port


def test_a_port_whose_connection_lingers_is_free() -> None:
    with _listener() as held:
        port = held.getsockname()[1]
        client = socket.create_connection((HOST, port))
        server, _ = held.accept()
        server.close()  # the side that closes first keeps TIME_WAIT
        client.close()
    assert is_free(port, host=HOST)


def test_picked_ports_are_different_free_and_outside_the_ephemeral_range() -> None:
    first = pick_free(3, host=HOST)
    second = pick_free(3, host=HOST, taken=first)
    assert len(set(first + second)) == 6
    assert all(port in PICK_FROM for port in first + second)
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        assert PICK_FROM.stop <= int(file.read().split()[0])


def test_when_all_are_taken_the_range_is_named() -> None:
    with pytest.raises(PortError, match=f"no 1 free ports from {PICK_FROM.start}"):
        pick_free(1, host=HOST, taken=PICK_FROM)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(PortError, match=f"--port={port}: not a port"):
        require_free(port, host=HOST, field="--port")


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(PortError, match=r"host=192\.0\.2\.1: cannot listen there"):
        is_free(30000, host="192.0.2.1")
