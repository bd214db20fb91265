"""Where the processes of a router count together: files of the metrics' client library."""

from __future__ import annotations

import os
import tempfile

# prometheus-client looks for it when it is imported.
MULTIPROC_DIR = "PROMETHEUS_MULTIPROC_DIR"


def make_folder() -> None:
    """Make the folder, and name it in the environment. Before prometheus-client is imported."""
    os.environ[MULTIPROC_DIR] = tempfile.mkdtemp(prefix="plait-router-")
