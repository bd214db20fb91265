"""Gather paths against collectives, on GPUs. Run by tests/gpu/gather_on_gpus.py."""
