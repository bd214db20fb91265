"""LeaderWorkerSet's API in the test's cluster, without its controller."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.cluster.harness.api import Api

CRD = Path(__file__).with_name("crd.yaml")


@pytest.fixture(scope="session")
def lws(api: Api) -> None:
    """The kind is served. It is optional to Plait, so only tests that ask for it see it."""
    api.establish(yaml.safe_load(CRD.read_text()))
