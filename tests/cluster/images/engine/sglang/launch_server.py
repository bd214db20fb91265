"""`python3 -m sglang.launch_server FLAGS`: an engine without a model, for pods on a machine without GPUs.

It reads the real flags and PLAIT_* settings, says of itself what a real engine would (both contracts' hashes,
ranks, tokens), pairs prefill with decode over the bootstrap port and streams an answer. What it lacks:
weights, ranks in processes of their own, a cache. `Switches` lists how it can be told to misbehave.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from aiohttp import web

from sglang.handover import Rooms
from sglang.identity import Identity
from sglang.serving import Serving
from sglang.switches import Switches

_LEAVE_S = 600.0  # requests end in their own time; the kubelet has the last word


async def serve(flags: list[str], switches: Switches) -> int:
    """Serve until told to end; the exit status."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: ended.done() or ended.set_result(0))
    if switches.crash_after_s is not None:
        loop.call_later(switches.crash_after_s, lambda: ended.done() or ended.set_result(1))
    identity = Identity.of(flags, switches)
    host, port = str(identity.args.get("host", "127.0.0.1")), int(str(identity.args.get("port", 30000)))
    await asyncio.wait([ended], timeout=switches.start_s)
    if ended.done():
        return ended.result()
    rooms = Rooms()
    serving = Serving(identity, switches, rooms)
    runner = web.AppRunner(
        serving.app(), access_log=None, handler_cancellation=True, shutdown_timeout=_LEAVE_S
    )
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    if identity.told.role == "prefill":
        bootstrap = int(str(identity.args.get("disaggregation_bootstrap_port", 8998)))
        await rooms.serve(host, bootstrap)
    print(
        f"The server is fired up and ready to roll! {identity.told.role} {identity.told.wire_hash[:16]}",
        flush=True,
    )
    status = await ended
    if status == 0:
        await runner.cleanup()
    return status


def main() -> None:
    status = asyncio.run(serve(sys.argv[1:], Switches.from_env()))
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
