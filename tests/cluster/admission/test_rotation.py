"""The webhook's authority and certificate change while the API server keeps asking: no request fails."""

import base64
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.cluster.admission.conftest import Create
from tests.cluster.admission.matrix import manifest
from tests.cluster.harness.api import Api
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.operators import Operators, webhooks

from plait_operator.admission.certificates import (
    AUTHORITY,
    AUTHORITY_LIFE,
    BEFORE,
    CERTIFICATE,
    KEY,
    NEXT,
    SETTLE,
    NewCertificate,
    ensure,
)

_NAMES = ["localhost"]


class Asking(threading.Thread):
    """Creates, dry-run, over and over."""

    def __init__(self, create: Create, namespace: str) -> None:
        super().__init__(daemon=True)
        self._create, self._namespace = create, namespace
        self._stop_asking = threading.Event()
        self.asked = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._stop_asking.is_set():
            try:
                self._create(self._namespace, manifest({}))
            except Exception as error:
                self.failures.append(str(error))
            self.asked += 1

    def end(self) -> None:
        self._stop_asking.set()
        self.join(30)


def put(folder: Path, told: NewCertificate) -> None:
    for name in (KEY, CERTIFICATE):
        (folder / name).write_bytes(base64.b64decode(told.data[name]))


def register(api: Api, namespace: str, port: int, bundle: bytes) -> None:
    for configuration in webhooks(namespace, port=port, bundle=bundle):
        client = configuration["webhooks"][0]["clientConfig"]
        client["url"] = client["url"].replace("127.0.0.1", "localhost")
        api.apply(configuration)


def test_no_request_fails_while_an_authority_gives_way_to_the_next(
    api: Api, plane: Cluster, namespace: str, operators: Operators, dry_run: Create
) -> None:
    process = operators.admission()  # with webhooks, which are pointed at another certificate at once
    folder = plane.instance.run / "admission" / namespace
    port = int(next(word for word in process.words if word.startswith("--port=")).partition("=")[2])

    def step(told: NewCertificate, *, first: bool = False) -> None:
        # Pods see the Secret and API servers the bundle in any order: the worse one is shown here.
        if first:
            register(api, namespace, port, told.bundle)
        put(folder, told)
        time.sleep(1.5)
        register(api, namespace, port, told.bundle)
        time.sleep(1)

    def next_step(data: dict[str, str], now: datetime) -> NewCertificate:
        told = ensure(data, dns_names=_NAMES, now=now)
        assert told is not None
        return told

    # Made so long ago that the authority is about to run out; the certificate is of today.
    now = datetime.now(UTC)
    old = next_step({}, now - AUTHORITY_LIFE + timedelta(days=300))
    fresh = next_step(old.data, now)
    step(fresh, first=True)
    asking = Asking(dry_run, namespace)
    dry_run(namespace, manifest({}))
    asking.start()
    joined = next_step(fresh.data, now)
    assert NEXT in joined.data
    step(joined)
    issued = next_step(joined.data, now + SETTLE)
    assert issued.data[AUTHORITY] != joined.data[AUTHORITY]
    # Certificates are valid from an hour before they were made, so this one is already.
    step(issued)
    left = next_step(issued.data, now + SETTLE * 2)
    assert BEFORE not in left.data
    step(left)
    asking.end()
    assert asking.failures == []
    assert asking.asked > 30
    assert "valid until" in process.log_text()
