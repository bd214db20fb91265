"""Runs a Supervisor over stub children in a process of its own, so that a test can signal or kill it.

    python stub_stack.py FOLDER GRACE_S START_TIMEOUT_S '{"name": ["--option", ...], ...}'

Prints UP once all are ready; ends with 10 after a signal, 11 when a child died, 12 when the start was late.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

from plait.stack.child import ChildSpec
from plait.stack.display import PlainReport
from plait.stack.ports import pick_free
from plait.stack.probe import Probe
from plait.stack.supervise import ChildDiedError, StartTimeoutError, StopRequested, Supervisor


def main() -> int:
    folder, grace, timeout, children = sys.argv[1:]
    pids = Path(folder) / "pids"
    pids.mkdir(exist_ok=True)
    wanted: dict[str, list[str]] = json.loads(children)
    stub = str(Path(__file__).with_name("stub_child.py"))
    specs = []
    for (name, options), port in zip(wanted.items(), pick_free(len(wanted), host="127.0.0.1"), strict=True):
        (pids / f"port-{port}").touch()
        specs.append(
            ChildSpec(
                name=name,
                argv=(sys.executable, "-S", stub, str(pids), str(port), *options),
                probe=Probe(f"http://127.0.0.1:{port}/plait/status", ranks=2, marker="fired up"),
                log=Path(folder) / f"{name}.log",
                ports=(port,),
            )
        )
    report = PlainReport(Console(file=sys.stderr))
    supervisor = Supervisor(
        specs, report=report, grace_s=float(grace), start_timeout_s=float(timeout), poll_s=0.05
    )
    try:
        with supervisor:
            supervisor.start()
            print("UP", flush=True)
            supervisor.wait()
    except StopRequested:
        return 10
    except ChildDiedError as error:
        print(error, flush=True)
        return 11
    except StartTimeoutError as error:
        print(error, flush=True)
        return 12
    raise AssertionError("unreachable: wait() leaves only by an exception")


if __name__ == "__main__":
    sys.exit(main())
