"""What goes wrong between the ranks of one host, in words that name the rank."""

from __future__ import annotations


class PeersCannotMapError(RuntimeError):
    """The ranks cannot map each other's memory; the message says which rank and why.

    Raised on all ranks of a group or on none, so that all fall back to collectives together.
    """


class PeerLostError(RuntimeError):
    """A rank did not come to a barrier, or its process has ended. The group cannot go on."""
