"""Effects: kopf and watches put keys in a queue, workers plan and apply. One leader at a time."""
