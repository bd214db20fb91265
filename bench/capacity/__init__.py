"""How much of N times stock a shared group holds: `python -m bench.capacity`."""
