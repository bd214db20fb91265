"""What holds for every test: the collector of cycles leaves alone what was there before the first one, and
what the tests on a cluster are told by the environment is nothing to the others."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

OF_THE_CLUSTER = (
    "PLAIT_CLUSTER",
    "PLAIT_CLUSTER_CACHE",
    "PLAIT_CLUSTER_KEEP",
    "PLAIT_CLUSTER_RUN",
    "PLAIT_FIGURES",
    "PLAIT_GROW_MINUTES",
    "PLAIT_LWS",
    "PLAIT_SCALE",
    "PLAIT_SOAK_MINUTES",
)
"""Engines refuse a PLAIT_ variable that they do not know, and whoever runs all tests may have set these."""

gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Away with them where no test of this run is one on a cluster."""
    if not any("tests/cluster" in item.path.as_posix() for item in items):
        for name in OF_THE_CLUSTER:
            os.environ.pop(name, None)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Half a million objects stay as long as the run: a full look at them takes a second, in which no mock
    engine of this process answers, and a router with deadlines of a second says so. While they are made, as
    modules are imported, looks for garbage find none and are a third of the time."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Where several processes share the tests: a file's stay together, and so do all of the engine's room,
    which starts the stock engine once for all of them."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            room = "tests/unit/engine/"
            return room if nodeid.startswith(room) else nodeid.split("::", 1)[0]

    return Scheduling(config, log)
