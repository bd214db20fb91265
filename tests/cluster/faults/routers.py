"""Answers for routers that exist as kwok pods only: who they have taken in is what a test says.

kwok gives its pods addresses at which nobody is. Here the whole range is made local to the network namespace,
and one server answers at every address on the routers' admin port, each for the pod that has it.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.cluster.harness.api import Api
from tests.cluster.harness.instance import FAKE_PODS, Instance

from plait_operator.names import INSTANCE, MANAGED_BY, MANAGER, ROLE, WIRE_HASH

PORT: Final = 8001
Json = dict[str, Any]
TakesIn = Callable[[Json, Json], bool]
"""Whether a router (a pod) has taken in an engine (a pod)."""


class Routers:
    """The server, from `start` to `stop`. `takes_in` may be changed at any time; `asked` counts questions."""

    def __init__(self, instance: Instance, namespace: str) -> None:
        self._api = Api(instance)
        self._namespace = namespace
        self._lock = threading.Lock()
        self.takes_in: TakesIn = lambda router, engine: True
        self.silent: Callable[[Json], bool] = lambda router: False
        self.asked = 0
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        subprocess.run(["ip", "route", "replace", "local", FAKE_PODS, "dev", "lo"], check=True)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = outer.answer(self.connection.getsockname()[0])
                if body is None:
                    self.send_error(503)
                    return
                data = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("0.0.0.0", PORT), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        subprocess.run(["ip", "route", "del", "local", FAKE_PODS, "dev", "lo"], check=False)

    def answer(self, address: str) -> Json | None:
        """GET /api/v1/groups of the router at this address; None: it does not answer."""
        with self._lock:
            self.asked += 1
            pods = self._api.list("v1", "Pod", self._namespace, selector=f"{MANAGED_BY}={MANAGER}")
        router = next((p for p in pods if (p.get("status") or {}).get("podIP") == address), None)
        if router is None or self.silent(router):
            return None
        instance = router["metadata"]["labels"][INSTANCE]
        engines = [
            p
            for p in pods
            if p["metadata"]["labels"].get(INSTANCE) == instance
            and p["metadata"]["labels"].get(ROLE) in ("prefill", "decode")
            and _runs(p)
        ]
        return {"ready": True, "pairs": [], "groups": [self._group(router, e) for e in engines]}

    def _group(self, router: Json, engine: Json) -> Json:
        labels = engine["metadata"]["labels"]
        taken = self.takes_in(router, engine) and not engine["metadata"].get("deletionTimestamp")
        return {
            "url": f"http://{engine['status']['podIP']}:30000",
            "side": labels[ROLE],
            "role": labels[ROLE],
            "reachable": taken,
            "ready": taken,
            "trouble": "" if taken else "the test says no",
            "identity": f"{engine['metadata']['uid']}/0",
            "draining": False,
            "in_flight": 0,
            "wire_hash": labels[WIRE_HASH] + "0" * 48,
            "group_hash": "",
            "capacity": None,
        }


def _runs(pod: Json) -> bool:
    told = {c["type"]: c["status"] for c in (pod.get("status") or {}).get("conditions") or []}
    return told.get("ContainersReady") == "True"
