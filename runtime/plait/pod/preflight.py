"""`python3 -m plait.pod.preflight … -- ENGINE FLAGS`: may the engine start here? See the room's docstring."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from plait.contract.verdict import CheckResult, Verdict
from plait.pod.arguments import count, seconds
from plait.pod.asked import Asked
from plait.pod.checks import contract, engine, flags, gpus, hooks, limits, plugin, rdma
from plait.pod.checks.result import bad
from plait.pod.deadline import Deadline, Waiting
from plait.pod.message import TERMINATION_LOG, leave

Check = Callable[[Asked], list[CheckResult]]
# Cheap ones first, since they are shown in this order; all of them run side by side.
CHECKS: Mapping[str, Check] = {
    engine.NAME: engine.check,
    plugin.NAME: plugin.check,
    flags.NAME: flags.check,
    contract.NAME: contract.check,
    limits.SHM: limits.check,
    rdma.NAME: rdma.check,
    gpus.NAME: gpus.check,
    hooks.NAME: hooks.check,
}


def examine(asked: Asked, checks: Mapping[str, Check] = CHECKS) -> Verdict:
    """Every check, each until the deadline at most. An error in a check is a check that says no."""
    waiting = {name: Waiting(partial(check, asked)) for name, check in checks.items()}
    results: list[CheckResult] = []
    for name, work in waiting.items():
        try:
            results += work.result(asked.deadline)
        except TimeoutError:
            reason = f"no answer within {asked.deadline.seconds:g} s"
            fix = "see whether the node, its disks or the model's volume hang"
            results.append(bad(name, "no answer", reason=reason, fix=fix))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            results.append(bad(name, "error", reason=reason, fix="see the container's log, and report it"))
    return Verdict.of(results)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Ends the process: 0 the engine may start, 1 it may not, 2 wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    told, asked = read(words, os.environ)
    verdict = examine(asked)
    for check in verdict.failed:
        print(
            f"plait: {check.name} = {check.value}: {check.reason}. Fix: {check.fix}",
            file=sys.stderr,
            flush=True,
        )
    leave(verdict.message(), told.message)
    # Not SystemExit: it would wait for a thread that hangs in the kernel.
    sys.stdout.flush()
    os._exit(0 if verdict.ok else 1)


def read(words: Sequence[str], environ: Mapping[str, str]) -> tuple[argparse.Namespace, Asked]:
    """The command line. Ends the process with status 2, and a verdict that says why, where it is wrong."""
    own, engine_flags = _halves(words)
    told = _parser().parse_args(own)
    return told, Asked(
        contract=told.contract,
        gpus=told.gpus,
        peer_access=told.peer_access,
        rdma_devices=tuple(told.rdma_device),
        shm_bytes=told.shm_bytes,
        flags=tuple(engine_flags),
        environ=dict(environ),
        deadline=Deadline(told.deadline_s),
    )


def _halves(words: Sequence[str]) -> tuple[list[str], list[str]]:
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        wrong = bad(
            "usage",
            " ".join(_halves(sys.argv[1:])[0]),
            reason=message,
            fix="see `python3 -m plait.pod.preflight --help`",
        )
        leave(Verdict.of([wrong]).message(), TERMINATION_LOG)
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python3 -m plait.pod.preflight", allow_abbrev=False)
    parser.add_argument("--contract", type=Path, required=True)
    parser.add_argument("--gpus", type=count, required=True)
    parser.add_argument("--peer-access", choices=("auto", "required", "off"), default="auto")
    parser.add_argument("--rdma-device", action="append", default=[])
    parser.add_argument("--shm-bytes", type=count, default=0)
    parser.add_argument("--deadline-s", type=seconds, default=300.0)
    parser.add_argument("--message", type=Path, default=TERMINATION_LOG)
    return parser


if __name__ == "__main__":
    main()
