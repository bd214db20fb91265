"""What a preflight is asked to look at, read once from its command line and the engine's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plait.contract.layouts import TransferBackend
from plait.contract.validate.argv import read_engine_argv
from plait.pod.deadline import Deadline


@dataclass(frozen=True, kw_only=True)
class Asked:
    """See the room's docstring for the flags. `flags`: the engine's own; `root`: another than / in tests."""

    contract: Path
    gpus: int
    peer_access: Literal["auto", "required", "off"] = "auto"
    rdma_devices: tuple[str, ...] = ()
    shm_bytes: int = 0
    flags: tuple[str, ...] = ()
    environ: Mapping[str, str]
    deadline: Deadline
    root: Path = Path("/")

    @property
    def args(self) -> dict[str, object]:
        """The engine's arguments as far as they can be read; the check of the flags tells of the rest."""
        return read_engine_argv(self.flags)[0]

    @property
    def cpu(self) -> bool:
        """Whether the engine is to run without GPUs."""
        return self.args.get("device") == "cpu"

    @property
    def rdma(self) -> bool:
        """Whether pages travel over RDMA."""
        backend = str(self.args.get("disaggregation_transfer_backend", TransferBackend.MOONCAKE.value))
        return backend == TransferBackend.MOONCAKE.value and self.environ.get("MC_FORCE_TCP") != "1"
