"""The engines' side of the router: connections, their pool, and one-off requests."""
