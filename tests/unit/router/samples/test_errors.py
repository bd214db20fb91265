"""The errors of a merge say which sample they are about."""

from __future__ import annotations

from plait.router.samples.errors import MergeError, SampleFailed


def test_a_merge_error_names_sample_and_reason() -> None:
    error = MergeError(2, "no choices")
    assert (str(error), error.sample, error.reason) == ("sample 2: no choices", 2, "no choices")


def test_a_failed_sample_keeps_the_engines_payload_and_quotes_its_beginning() -> None:
    failed = SampleFailed(1, b'{"error":"' + b"x" * 10_000 + b'\xff"}')
    assert failed.payload.endswith(b'\xff"}')
    assert str(failed).startswith('sample 1 failed: {"error":"xxx')
    assert len(str(failed)) < 300
