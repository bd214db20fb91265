"""Builds the router's hot path to machine code where asked for (`ROUTER_MYPYC=1`): see tools/router_wheel.sh.

The modules stay plain Python, and run as they are where nothing was compiled: in a checkout, in the engines'
images, on machines without a compiler. mypyc, which checks their types, compiles them as one unit.
"""

import os
from pathlib import Path

from setuptools import setup

ROUTER = Path("runtime/plait/router")
# What a request, a chunk or a placement runs through. Not: modules with classes that inherit from classes of
# other packages (uvicorn's protocol, asyncio's), which gain nothing. Below a compiled class, a class must be
# compiled too.
HOT = (
    "answers.py",
    "attempt.py",
    "body.py",
    "connection.py",
    "breaker.py",
    "errors.py",
    "exchange.py",
    "headers.py",
    "incoming.py",
    "key_lines.py",
    "keys.py",
    "leg.py",
    "merging.py",
    "metrics.py",
    "placement/hashing.py",
    "placement/memory.py",
    "placement/policy.py",
    "placement/rendezvous.py",
    "placement/shares.py",
    "placement/views.py",
    "queue.py",
    "randomness.py",
    "rates.py",
    "registry.py",
    "routes/prompts.py",
    "samples/fields.py",
    "sse.py",
    "standstill.py",
    "tally.py",
    "upstream/connection.py",
    "upstream/fetch.py",
    "upstream/pool.py",
    "workers.py",
)


def compiled():
    """The extension modules, none where they are not asked for."""
    if os.environ.get("ROUTER_MYPYC") != "1":
        return []
    from mypyc.build import mypycify

    os.environ["MYPYPATH"] = "runtime"
    return mypycify(
        ["--ignore-missing-imports", "--follow-imports=silent", *(str(ROUTER / name) for name in HOT)],
        opt_level="3",
        multi_file=False,
    )


setup(ext_modules=compiled())
