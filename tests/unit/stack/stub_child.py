"""A stub child for the supervisor's tests: serves, or misbehaves, as told by its options. Stdlib only.

Every process of it notes its pid as a file in FOLDER, so that a test can see who is left.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path


def note(folder: Path, kind: str) -> None:
    (folder / f"{kind}-{os.getpid()}").touch()


def spawn_hidden(folder: Path, *, depth: int) -> None:
    """A descendant in a session of its own, orphaned at once, deaf to SIGTERM, holding a port."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.listen()
    (folder / f"port-{held.getsockname()[1]}").touch()
    note(folder, "hidden")
    if depth:
        spawn_hidden(folder, depth=depth - 1)
    while True:
        time.sleep(60)


class Handler(http.server.BaseHTTPRequestHandler):
    ranks = 1

    def do_GET(self) -> None:
        body = json.dumps({"ranks": [{} for _ in range(self.ranks)]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("port", type=int)
    options.add_argument("--ready-after", type=float, default=0.0, help="negative: never")
    options.add_argument("--ranks", type=int, default=1)
    options.add_argument("--die-after", type=float, default=0.0, help="0: never")
    options.add_argument("--die-code", type=int, default=3, help="negative: by this signal")
    options.add_argument("--deaf", action="store_true", help="ignores SIGTERM")
    options.add_argument("--hidden", type=int, default=0, help="so many generations in own sessions")
    args = options.parse_args()
    note(args.folder, "child")
    if args.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("loading weights", flush=True)
    if args.hidden:
        spawn_hidden(args.folder, depth=args.hidden - 1)
    if args.die_after:
        threading.Thread(target=die, args=(args.die_after, args.die_code), daemon=True).start()
    if args.ready_after < 0:
        while True:
            time.sleep(60)
    time.sleep(args.ready_after)
    Handler.ranks = args.ranks
    http.server.ThreadingHTTPServer.allow_reuse_address = True
    server = http.server.ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    print("The server is fired up and ready to roll!", flush=True)
    server.serve_forever()


def die(after: float, code: int) -> None:
    time.sleep(after)
    for line in range(30):
        print(f"trouble {line}", flush=True)
    if code < 0:
        os.kill(os.getpid(), -code)
        time.sleep(60)
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
