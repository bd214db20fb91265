"""What can go wrong between the samples of one request."""

from __future__ import annotations


class MergeError(ValueError):
    """An engine's answer does not fit those of the other samples; `sample` counts from 0."""

    def __init__(self, sample: int, reason: str) -> None:
        super().__init__(f"sample {sample}: {reason}")
        self.sample = sample
        self.reason = reason


class SampleFailed(Exception):  # noqa: N818 - a thing that happened to a sample, not a fault in the merge
    """A sample's stream holds an error event: `payload`, the engine's own JSON, not to be merged."""

    def __init__(self, sample: int, payload: bytes) -> None:
        super().__init__(f"sample {sample} failed: {payload[:200].decode('utf-8', 'replace')}")
        self.sample = sample
        self.payload = payload
