"""The admission webhook: a FastAPI application of its own, beside the operator and not in it."""
