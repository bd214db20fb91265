"""The first process: binds the ports, forks the others, replaces those that die, and ends them in order."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NoReturn

from plait.router.config import RouterConfig
from plait.router.server import listen

log = logging.getLogger("plait.router.processes")

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
# After their drain, serving processes have requests that were told to end, and aborts to deliver.
_GRACE = 8.0
# A process that dies at once would be forked without end: each further time it waits longer.
_PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
_CALM = 60.0
_PR_SET_PDEATHSIG = 1


class _Child:
    """A process to keep: how to run it, and since when it runs."""

    def __init__(self, name: str, main: Callable[[], None]) -> None:
        self.name = name
        self.main = main
        self.pid = 0
        self.born = 0.0
        self.deaths = 0
        self.due = 0.0


def run(config: RouterConfig) -> None:
    """Serve in `config.processes` processes until SIGTERM or SIGINT. Raises ConfigError before the first."""
    admin = listen(config, "admin_port", config.admin_host or config.host, config.admin_port)
    # A port that is shared could be shared with another router, and nobody would be told.
    listen(config, "port", config.host, config.port).close()
    # Held here too: what is in a dead process's backlog is served by the one that replaces it.
    sockets = [listen(config, "port", config.host, config.port, shared=True) for _ in range(config.processes)]
    folder = tempfile.mkdtemp(prefix="plait-router-")
    control = os.path.join(folder, "control.sock")
    children = [_Child("admin", lambda: _admin(config, admin, control))]
    for number, sock in enumerate(sockets):
        children.append(_Child(f"serving {number}", lambda sock=sock: _serving(config, sock, control)))  # type: ignore[misc]
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        _keep(children, config, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _keep(children: list[_Child], config: RouterConfig, folder: str) -> None:
    for child in children:
        _fork(child, folder)
    while True:
        got = signal.sigtimedwait(_SIGNALS, 0.5)
        if got is not None and got.si_signo != signal.SIGCHLD:
            break
        _reap(children)
        now = time.monotonic()
        for child in children:
            if not child.pid and child.due <= now:
                _fork(child, folder)
    _end(children, config)


def _end(children: list[_Child], config: RouterConfig) -> None:
    """Serving processes first: the admin process answers probes and scrapes while they drain."""
    for part in ([c for c in children if c.name != "admin"], [c for c in children if c.name == "admin"]):
        _send(part, signal.SIGTERM)
        deadline = time.monotonic() + config.deadlines.drain + _GRACE
        while any(c.pid for c in part) and time.monotonic() < deadline:
            got = signal.sigtimedwait(_SIGNALS, 0.5)
            if got is not None and got.si_signo != signal.SIGCHLD:
                _send(part, signal.SIGTERM)
            _reap(children, ending=True)
        _send(part, signal.SIGKILL)
        for child in part:
            if child.pid:
                os.waitpid(child.pid, 0)
                child.pid = 0


def _reap(children: list[_Child], *, ending: bool = False) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        for child in children:
            if child.pid == pid:
                child.pid = 0
                if not ending:
                    _died(child, os.waitstatus_to_exitcode(status))


def _died(child: _Child, code: int) -> None:
    now = time.monotonic()
    child.deaths = 1 if now - child.born > _CALM else child.deaths + 1
    pause = _PAUSES[min(child.deaths, len(_PAUSES)) - 1]
    child.due = now + pause
    log.error("the %s process died (%d); a new one in %g s", child.name, code, pause)


def _send(children: list[_Child], number: int) -> None:
    for child in children:
        if child.pid:
            os.kill(child.pid, number)


def _fork(child: _Child, folder: str) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        child.pid, child.born = pid, time.monotonic()
        return
    _child(child.main, parent, folder)


def _child(main: Callable[[], None], parent: int, folder: str) -> NoReturn:
    code = 1
    try:
        # The supervisor may be killed without a word; whoever outlived it would keep the port.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() == parent:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            main()
        code = 0
    except BaseException:
        log.exception("a process of the router failed")
    finally:
        if os.getppid() != parent:
            # Killed, it could not clear up behind itself.
            shutil.rmtree(folder, ignore_errors=True)
        logging.shutdown()
        os._exit(code)


def _admin(config: RouterConfig, sock: socket.socket, control: str) -> None:
    from plait.router.processes.admin import main

    main(config, sock, control)


def _serving(config: RouterConfig, sock: socket.socket, control: str) -> None:
    from plait.router.processes.serving import main

    main(config, sock, control)
