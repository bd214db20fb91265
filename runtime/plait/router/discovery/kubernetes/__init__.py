"""Workers from the pods of a Kubernetes namespace: one list and one watch, through aiohttp."""
