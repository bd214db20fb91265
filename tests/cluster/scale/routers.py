"""Answers for the routers of a whole fleet of kwok pods, in a process of its own.

kwok gives its pods addresses at which nobody is. The range is made local to the network namespace, and one
server answers at every address on the routers' admin port, each time for the pod that has that address: it
has taken in every engine of its deployment that runs. What runs, it knows by a watch, as a router does.

    python -m tests.cluster.scale.routers KUBECONFIG
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson
from tests.cluster.harness.instance import FAKE_PODS, Instance

from plait_operator.apply.connection import Connection
from plait_operator.apply.errors import ApplyError
from plait_operator.apply.kinds import POD
from plait_operator.controller.informer import SELECTOR
from plait_operator.controller.watching import Watcher
from plait_operator.names import INSTANCE, ROLE, WIRE_HASH

PORT: Final = 8001
_REPOSITORY: Final = Path(__file__).parents[3]
_ENGINES: Final = ("prefill", "decode")
Key = tuple[str, str]


@contextlib.contextmanager
def answering(instance: Instance) -> Iterator[subprocess.Popen[bytes]]:
    """The process, while the block runs. Frozen by SIGSTOP, it takes connections and never answers."""
    subprocess.run(["ip", "route", "replace", "local", FAKE_PODS, "dev", "lo"], check=True)
    command = [sys.executable, "-m", "tests.cluster.scale.routers", str(instance.kubeconfig())]
    with (instance.logs / "fleet-routers.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=_REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        subprocess.run(["ip", "route", "del", "local", FAKE_PODS, "dev", "lo"], check=False)


class Known:
    """Engines by deployment, and whose each router's address is."""

    def __init__(self) -> None:
        self._routers: dict[str, Key] = {}
        self._engines: dict[Key, dict[str, dict[str, Any]]] = {}

    def tell(self, pod: dict[str, Any], *, gone: bool) -> None:
        """A pod as it is now."""
        meta, status = pod["metadata"], pod.get("status") or {}
        labels, address = meta.get("labels") or {}, status.get("podIP") or ""
        key = (meta["namespace"], labels.get(INSTANCE, ""))
        if labels.get(ROLE) == "router":
            if gone:
                self._routers.pop(address, None)
            elif address:
                self._routers[address] = key
        elif labels.get(ROLE) in _ENGINES:
            running = {c["type"]: c["status"] for c in status.get("conditions") or ()}
            there = self._engines.setdefault(key, {})
            if gone or meta.get("deletionTimestamp") or running.get("ContainersReady") != "True":
                there.pop(meta["name"], None)
            else:
                there[meta["name"]] = _group(meta["uid"], labels, address)

    def answer(self, address: str) -> bytes | None:
        """GET /api/v1/groups of the router at this address; None where there is none."""
        key = self._routers.get(address)
        if key is None:
            return None
        return orjson.dumps({"ready": True, "pairs": [], "groups": [*self._engines.get(key, {}).values()]})


def _group(uid: str, labels: dict[str, str], address: str) -> dict[str, Any]:
    return {
        "url": f"http://{address}:30000",
        "side": labels[ROLE],
        "role": labels[ROLE],
        "reachable": True,
        "ready": True,
        "trouble": "",
        "identity": f"{uid}/0",
        "draining": False,
        "in_flight": 0,
        "wire_hash": labels[WIRE_HASH] + "0" * 48,
        "group_hash": "",
        "capacity": None,
    }


class _Server(asyncio.Protocol):
    """As little HTTP as it takes: a thousand deployments are asked a hundred times a second."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._address = transport.get_extra_info("sockname")[0]

    def data_received(self, data: bytes) -> None:
        self._held += data
        while b"\r\n\r\n" in self._held:
            _, _, self._held = self._held.partition(b"\r\n\r\n")
            body = self._known.answer(self._address)
            status = b"200 OK" if body is not None else b"503 Service Unavailable"
            body = body or b"{}"
            self._transport.write(
                b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (status, len(body), body)
            )


async def _follow(watcher: Watcher, known: Known) -> None:
    path = POD.path("")
    while True:
        try:
            version = 0
            async for page in watcher.pages(path, selector=SELECTOR):
                version = page.version
                for pod in page.items:
                    known.tell(pod, gone=False)
            while True:
                async for event in watcher.events(path, selector=SELECTOR, version=version, seconds=600):
                    version = event.version
                    if event.type != "BOOKMARK":
                        known.tell(event.thing, gone=event.type == "DELETED")
        except ApplyError as error:
            print(error, flush=True)
            await asyncio.sleep(0.5)


async def main(kubeconfig: Path) -> None:
    """Until killed."""
    known = Known()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Server(known), "0.0.0.0", PORT, backlog=1024
    )
    async with server:
        await _follow(Watcher(Connection.load(kubeconfig)), known)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
