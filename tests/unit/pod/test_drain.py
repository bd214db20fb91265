"""When an engine counts as idle, and how long a drain waits."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat

import pytest

from plait.contract.status import EngineStatus, PageCounts, RankStatus
from plait.pod.drain import Look, Plan, State, drain, judge, look, main

IDLE, BUSY = Look(State.IDLE, "idle"), Look(State.BUSY, "1 running")
UNKNOWN, GONE = Look(State.UNKNOWN, "no answer"), Look(State.GONE, "nobody listens")


def rank(number: int = 0, **told: object) -> RankStatus:
    return RankStatus.model_validate({"rank": number, "pid": 1, "updated_at": 0.0, **told})


def status(*ranks: RankStatus) -> EngineStatus:
    return EngineStatus(role="prefill", layout="shared", ranks=list(ranks))


@pytest.mark.parametrize(
    ("ranks", "state"),
    [
        ([rank()], State.IDLE),
        ([rank(0), rank(1)], State.IDLE),
        ([rank(running=1)], State.BUSY),
        ([rank(queued=1)], State.BUSY),
        ([rank(0), rank(1, pages=PageCounts(in_flight=3))], State.BUSY),
        ([], State.UNKNOWN),
        ([rank(0), rank(1, age_s=60.0)], State.UNKNOWN),
    ],
)
def test_what_a_status_means(ranks: list[RankStatus], state: State) -> None:
    assert judge(status(*ranks)).state is state


class Time:
    """A clock that only sleeping moves; each look costs `look_s`."""

    def __init__(self, *looks: Look, then: Look, look_s: float = 0.0) -> None:
        self.now, self.look_s = 1000.0, look_s
        self.looks: Iterator[Look] = chain(looks, repeat(then))
        self.said: list[str] = []

    def ask(self) -> Look:
        self.now += self.look_s
        return next(self.looks)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def drain(self, **times: float) -> tuple[bool, float]:
        plan = Plan(**{"leave_s": 0.0, "quiet_s": 2.0, "deadline_s": 60.0, **times})
        start = self.now
        done = drain(self.ask, plan, self.said.append, clock=lambda: self.now, sleep=self.sleep)
        return done, self.now - start


def test_an_idle_engine_is_left_after_the_quiet_time() -> None:
    assert Time(then=IDLE).drain(leave_s=5) == (True, 7.0)


def test_work_between_starts_the_quiet_time_anew() -> None:
    done, took = Time(*[IDLE] * 7, BUSY, then=IDLE).drain()
    assert done
    assert took == pytest.approx(2.0 + 2.0, abs=0.26)


@pytest.mark.parametrize("then", [BUSY, UNKNOWN])
def test_the_deadline_ends_it(then: Look) -> None:
    time = Time(then=then)
    assert time.drain(leave_s=5, deadline_s=30) == (False, 35.0)
    assert then.note in time.said[-1]


def test_a_slow_engine_does_not_stretch_the_deadline_by_more_than_a_look() -> None:
    done, took = Time(then=UNKNOWN, look_s=5.0).drain(deadline_s=30)
    assert not done
    assert took <= 36


def test_a_dead_engine_is_left_at_once() -> None:
    done, took = Time(then=GONE).drain(deadline_s=600)
    assert done
    assert took < 2


def test_one_refused_connection_is_no_death() -> None:
    done, took = Time(GONE, BUSY, GONE, GONE, BUSY, then=IDLE).drain()
    assert done
    assert took > 2.0


def test_idle_is_not_known_from_silence() -> None:
    assert Time(then=UNKNOWN).drain(deadline_s=10)[0] is False


def test_no_deadline_at_all_still_looks_once() -> None:
    assert Time(then=BUSY).drain(deadline_s=0) == (False, 0.0)


@contextmanager
def served(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def body(text: str, code: int = 200) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        assert handler.path == "/plait/status"
        handler.send_response(code)
        handler.end_headers()
        handler.wfile.write(text.encode())

    return answer


@pytest.mark.parametrize(
    ("text", "code", "state"),
    [
        (status(rank()).model_dump_json(), 200, State.IDLE),
        (status(rank(running=2)).model_dump_json(), 200, State.BUSY),
        ("{}", 404, State.UNKNOWN),
        ("<html>", 200, State.UNKNOWN),
        ('{"role": "prefill"}', 200, State.UNKNOWN),
    ],
)
def test_what_an_answer_means(text: str, code: int, state: State) -> None:
    with served(body(text, code)) as url:
        assert look(url).state is state


def test_the_engines_key_is_sent() -> None:
    def guarded(handler: http.server.BaseHTTPRequestHandler) -> None:
        known = handler.headers.get("authorization") == "Bearer k"
        body(status(rank()).model_dump_json(), 200 if known else 401)(handler)

    with served(guarded) as url:
        assert look(url).state is State.UNKNOWN
        assert look(url, key="k").state is State.IDLE


def test_a_server_that_hangs_up() -> None:
    with served(lambda handler: handler.connection.close()) as url:
        assert look(url).state is State.UNKNOWN


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_nobody_there() -> None:
    assert look(f"http://127.0.0.1:{free_port()}").state is State.GONE


def test_the_command(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    log = f"{tmp_path}/log"
    with served(body(status(rank()).model_dump_json())) as url:
        assert main(["--url", url, "--leave-s", "0", "--quiet-s", "0.1", "--log", log]) == 0
    with open(log) as told:
        assert told.read() == capsys.readouterr().err
    with served(body(status(rank(queued=1)).model_dump_json())) as url:
        assert main(["--url", url, "--leave-s", "0", "--deadline-s", "0.3", "--log", "/no/such/log"]) == 1
    assert "1 queued" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "https://a:1", "http://a", "http://a:port"])
def test_a_url_that_is_none(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--url", url])
    assert "is not like" in capsys.readouterr().err
