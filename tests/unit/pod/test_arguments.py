"""Values of the command lines."""

from __future__ import annotations

import argparse

import pytest

from plait.pod.arguments import count, seconds


def test_sound_values() -> None:
    assert (count("0"), count("8"), seconds("0"), seconds("1.5")) == (0, 8, 0.0, 1.5)


@pytest.mark.parametrize("text", ["-1", "1.5", "x", ""])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        count(text)


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "x", ""])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        seconds(text)
