"""The shipped text is there, plain, and long enough to fill many pages."""

from __future__ import annotations

from plait.model.sample import sample_text


def test_the_text_is_prose_of_some_thousand_bytes() -> None:
    text = sample_text()
    assert 8000 < len(text.encode()) < 16000
    assert text.isascii()
    assert text.count("\n\n") >= 10
