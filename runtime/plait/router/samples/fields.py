"""What of a request belongs to the router: the one list of body fields and headers a client may not set."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from plait.router.errors import RouterError, bad_request

_PAIRING = "is set by the router, which pairs the engines"
_RANK = "is set by the router, which chooses the data-parallel ranks of both engines"
_WIRING = "is set between the parts of one engine, never by a client"

# All that SGLang 0.5.17's request models (protocol.py; GenerateReqInput in io_struct.py) have of this kind.
OWNED_FIELDS: Final = MappingProxyType(
    {
        "rid": _PAIRING,
        "bootstrap_host": _PAIRING,
        "bootstrap_port": _PAIRING,
        "bootstrap_room": _PAIRING,
        "bootstrap_pair_key": _PAIRING,
        "decode_tp_size": _PAIRING,
        "routed_dp_rank": _RANK,
        "disagg_prefill_dp_rank": _RANK,
        "data_parallel_rank": _RANK,
        # Where an engine's answer goes inside it, and where it fetches encoded images from: a client that
        # sets them has its answer sent elsewhere, or has the engine connect to an address of its choice.
        "http_worker_ipc": _WIRING,
        "encoder_urls": _WIRING,
        "mm_data_mooncake": _WIRING,
        "need_wait_for_mm_inputs": _WIRING,
        "num_items_assigned": _WIRING,
        "external_trace_header": _WIRING,
    }
)
# Names that later engines may add: rooms, and the recompute of a retracted request (PD rebootstrap).
OWNED_PREFIXES: Final = ("bootstrap_", "pd_rebootstrap_", "disagg_")
# With these an engine takes the same fields from headers, over those in the body
# (request_headers.py, and serving_base.py for the last). x-override-priority stays the client's.
OWNED_HEADERS: Final = frozenset(
    (
        "x-override-rid",
        "x-override-bootstrap-host",
        "x-override-bootstrap-port",
        "x-override-bootstrap-room",
        "x-override-routed-dp-rank",
        "x-override-disagg-prefill-dp-rank",
        "x-data-parallel-rank",
    )
)


def refuse_owned(names: Iterable[str]) -> None:
    """Raise RouterError (400, naming the field) if one of `names`, the keys of a body, is the router's."""
    for name in names:
        if name in OWNED_FIELDS or name.startswith(OWNED_PREFIXES):
            raise owned_field(name)


def owned_field(name: str) -> RouterError:
    """The 400 for a client that sets `name`."""
    return bad_request(f"'{name}' {OWNED_FIELDS.get(name, _PAIRING)}: leave it out.", param=name)
