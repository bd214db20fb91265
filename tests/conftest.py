"""What holds for every test: the collector of cycles leaves alone what was there before the first one."""

from __future__ import annotations

import gc

import pytest

gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Half a million objects stay as long as the run: a full look at them takes a second, in which no mock
    engine of this process answers, and a router with deadlines of a second says so. While they are made, as
    modules are imported, looks for garbage find none and are a third of the time."""
    gc.freeze()
    gc.enable()
