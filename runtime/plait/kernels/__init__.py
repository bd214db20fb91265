"""Triton kernels, each beside its torch reference.

Which of the two an engine uses is settled at start by all ranks together (`choice`); a failure later, in
flight, stops the group.
"""

from plait.kernels.choice import Agreement, Bound, Choice, agree, bind, choose

__all__ = ["Agreement", "Bound", "Choice", "agree", "bind", "choose"]
