"""Memory that the ranks of one host map into each other, and barriers on it."""

from plait.peer.arena import Arena, Placed, Segment, lay_out
from plait.peer.barrier import Barrier, open_barrier
from plait.peer.errors import PeerLostError, PeersCannotMapError
from plait.peer.memory import MappedMemory, PeerMemory, open_peer_memory
from plait.peer.pads import CHANNELS, MOST_RANKS, Fault
from plait.peer.watch import PeerWatch

__all__ = [
    "CHANNELS",
    "MOST_RANKS",
    "Arena",
    "Barrier",
    "Fault",
    "MappedMemory",
    "PeerLostError",
    "PeerMemory",
    "PeerWatch",
    "PeersCannotMapError",
    "Placed",
    "Segment",
    "lay_out",
    "open_barrier",
    "open_peer_memory",
]
