"""Plait: one key-value cache per context-parallel prefill group."""

__version__ = "0.1.0"
