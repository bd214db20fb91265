"""What runs in an engine's pod beside it: the injected tree, preflight, drain, reading the model."""
