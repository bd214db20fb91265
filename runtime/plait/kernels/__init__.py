"""Triton kernels, each beside its torch reference. Which of the two an engine uses is settled at start, by all
ranks together (`choice`)."""
