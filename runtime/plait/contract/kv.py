"""The two contracts about KV, and their hashes.

Wire: what prefill and decode must agree on, since one writes bytes that the other reads as its own. The
router pairs on its hash and the bootstrap handshake carries it. Group: wire, and what the ranks of one
prefill group must agree on; its hash names revisions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Self

from plait.contract.layouts import PAGE_SIZE, KvDtype, Layout, Split, TransferBackend
from plait.contract.rows import kv_dtype as parse_kv_dtype
from plait.contract.shape import ModelShape
from plait.contract.violation import ContractError, Violation

WIRE_VERSION = 1
"""Raise it whenever the meaning of what is sent changes: pages, positions, order of buffers."""
INDEX_DTYPE = "fp8_e4m3"


class Difference(NamedTuple):
    """One field in which two contracts differ."""

    field: str
    left: object
    right: object


class _Contract:
    """Hash, comparison and plain-data form that both contracts share. Not for use by itself."""

    @property
    def hash(self) -> str:
        """64 hex digits: equal exactly when all fields are, in any process and whatever the field order."""
        told = {"contract": type(self).__name__, **_flat(self)}
        return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class WireContract(_Contract):
    """What prefill and decode must agree on. Row bytes are per token and layer."""

    model_digest: str
    layers: int
    page_size: int
    kv_dtype: str
    index_dtype: str
    mla_row_bytes: int
    index_row_bytes: int
    draft_layers: int
    transfer_backend: str
    wire_version: int = WIRE_VERSION

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        *,
        kv_dtype: KvDtype | str,
        transfer_backend: TransferBackend | str,
        draft_layers: int = 0,
    ) -> WireContract:
        """The contract of a model whose KV is stored as `kv_dtype`.

        Raises ContractError for a KV dtype or sizes that have no rows, or an unknown backend.
        """
        stored = parse_kv_dtype(kv_dtype)
        rows = shape.rows(stored)
        return cls(
            model_digest=shape.digest(),
            layers=shape.num_hidden_layers,
            page_size=PAGE_SIZE,
            kv_dtype=stored.value,
            index_dtype=INDEX_DTYPE,
            mla_row_bytes=rows.mla,
            index_row_bytes=rows.index,
            draft_layers=draft_layers,
            transfer_backend=_backend(transfer_backend).value,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From `to_dict` data. Raises ContractError on missing, unknown or mistyped fields."""
        _check_fields(cls, data)
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class GroupContract(_Contract):
    """What the `ranks` of one context-parallel group must agree on."""

    wire: WireContract
    ranks: int
    split: Split
    layout: Layout
    engine_version: str
    plait_version: str


def transfer_backend(name: str, environ: Mapping[str, str]) -> TransferBackend:
    """The backend that an engine with `--disaggregation-transfer-backend name` really uses.

    Stock SGLang turns `mooncake_tcp` into `mooncake` with MC_FORCE_TCP=1, so at run time the two are told
    apart by the environment alone. Raises ContractError for a backend that Plait does not carry pages over.
    """
    backend = _backend(name)
    if backend is TransferBackend.MOONCAKE and environ.get("MC_FORCE_TCP") == "1":
        return TransferBackend.MOONCAKE_TCP
    return backend


def diff(left: WireContract | GroupContract, right: WireContract | GroupContract) -> list[Difference]:
    """Fields that differ, in the order of the contract, each with both values; [] when the hashes are equal.

    Fields of a nested wire contract are named `wire.<field>`.
    """
    a, b = _flat(left), _flat(right)
    return [Difference(name, a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)]


def _flat(contract: Any, prefix: str = "") -> dict[str, object]:
    told: dict[str, object] = {}
    for field in fields(contract):
        value = getattr(contract, field.name)
        if isinstance(value, _Contract):
            told |= _flat(value, f"{prefix}{field.name}.")
        else:
            told[prefix + field.name] = value
    return told


def _backend(name: TransferBackend | str) -> TransferBackend:
    if name in [backend.value for backend in TransferBackend]:
        return TransferBackend(name)
    known = ", ".join(backend.value for backend in TransferBackend)
    reason = "Plait does not carry owned pages over this transfer backend"
    raise ContractError([Violation("disaggregation_transfer_backend", name, reason, f"one of {known}")])


def _check_fields(cls: type, data: Mapping[str, Any]) -> None:
    kinds = {"int": int, "str": str}
    known = {field.name: kinds[str(field.type)] for field in fields(cls)}
    bad = [
        Violation(name, data[name], "no field of the wire contract", "run one version of Plait on both sides")
        for name in sorted(set(data) - set(known))
    ]
    for name, kind in known.items():
        value = data.get(name)
        if isinstance(value, bool) or not isinstance(value, kind):
            reason = "is missing" if name not in data else f"must be of type {kind.__name__}"
            bad.append(Violation(name, value, reason, "run one version of Plait on both sides"))
    if bad:
        raise ContractError(bad)
