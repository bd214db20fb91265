"""Readiness needs the log's marker, an answer, and all ranks."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.stack.ports import pick_free
from plait.stack.probe import LogWatch, Probe, ask, check, tail


class _Server(http.server.ThreadingHTTPServer):
    status = 200
    body = b""


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def _url(server: _Server) -> str:
    return f"http://127.0.0.1:{server.server_port}/plait/status"


def test_the_marker_comes_first_then_the_ranks(server: _Server, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("loading\n")
    probe, watch = Probe(_url(server), ranks=2, marker="fired up"), LogWatch(log, "fired up")
    server.body = json.dumps({"ranks": [{}]}).encode()
    assert check(probe, watch) == (False, "loading")
    log.write_text("loading\nThe server is fired up\n")
    assert check(probe, watch) == (False, "1 of 2 ranks report")
    server.body = json.dumps({"ranks": [{}, {}]}).encode()
    assert check(probe, watch) == (True, "ready")


def test_an_answer_other_than_200_is_not_ready(server: _Server, tmp_path: Path) -> None:
    server.status = 503
    assert check(Probe(_url(server)), LogWatch(tmp_path / "no", "")) == (False, "/plait/status answers 503")


@pytest.mark.parametrize("body", [b"not json", b"{}", b"[]", b'{"ranks": 7}'])
def test_nonsense_counts_as_no_ranks(server: _Server, tmp_path: Path, body: bytes) -> None:
    server.body = body
    result = check(Probe(_url(server), ranks=1), LogWatch(tmp_path / "no", ""))
    assert result == (False, "0 of 1 ranks report")


def test_nobody_there_is_no_error(tmp_path: Path) -> None:
    port = pick_free(1, host="127.0.0.1")[0]
    url = f"http://127.0.0.1:{port}/ready"
    assert ask(url) == (0, b"")
    assert check(Probe(url), LogWatch(tmp_path / "no", "")) == (False, "no answer on /ready")


def test_a_server_that_never_answers_costs_a_second_at_most(tmp_path: Path) -> None:
    import socket
    import time

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        begin = time.monotonic()
        assert ask(f"http://127.0.0.1:{deaf.getsockname()[1]}/", timeout_s=0.2).status == 0
        assert time.monotonic() - begin < 2.0


def test_a_marker_is_found_across_two_writes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    watch = LogWatch(log, "fired up")
    assert not watch.seen()
    log.write_bytes(b"x fire")
    assert not watch.seen()
    with log.open("ab") as file:
        file.write(b"d up y")
    assert watch.seen()
    log.unlink()
    assert watch.seen()


def test_the_tail_skips_blank_lines_and_overwritten_progress(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes("one\n\ntwo\n 10%\r 50%\r100%\nthrée\n\n".encode())
    assert tail(log, 3) == ["two", "100%", "thrée"]
    assert tail(log, 99) == ["one", "two", "100%", "thrée"]
    assert tail(tmp_path / "none", 3) == []
